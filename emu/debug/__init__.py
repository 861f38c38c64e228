"""Stepping a kernel forwards and backwards: one line of time, breakpoints, threads. Knows nothing of BPF."""

from emu.debug.breakpoints import Access, AtAddress, AtEvent, AtPhase, Breakpoint, When
from emu.debug.debugger import Debugger
from emu.debug.errors import DebugError
from emu.debug.frames import Frame, Slot
from emu.debug.stop import Stop, StopReason
from emu.debug.threads import OperationThread, TaskThread, Thread
from emu.debug.views import CallSite, CodeLine, CpuState, PatchedBytes

__all__ = [
    "Access",
    "AtAddress",
    "AtEvent",
    "AtPhase",
    "Breakpoint",
    "CallSite",
    "CodeLine",
    "CpuState",
    "DebugError",
    "Debugger",
    "Frame",
    "OperationThread",
    "PatchedBytes",
    "Slot",
    "Stop",
    "StopReason",
    "TaskThread",
    "Thread",
    "When",
]
