"""The host's part of a run: Unicorn's library, code hooks in machine code, the access log, the watchdog."""
