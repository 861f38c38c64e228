"""Standalone programs: compiled and called in guest memory, without a kernel, an attach point or verification."""

from trampoline.bpf.standalone.machine import BareMachine, Helper, ProgramFault

__all__ = ["BareMachine", "Helper", "ProgramFault"]
