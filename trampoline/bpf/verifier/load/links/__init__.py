"""Checks of links and perf events: one file for each kind, as in ``trampoline.lab.links``."""
