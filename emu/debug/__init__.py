"""Stepping a kernel forwards and backwards: one timeline, breakpoints, threads. Independent of BPF."""

from emu.debug.breakpoints import AtAddress, AtEvent, AtPhase, Breakpoint, DataAccess, When
from emu.debug.debugger import Debugger
from emu.debug.errors import DebugError
from emu.debug.frames import FrameSlot, StackFrame
from emu.debug.stop import DebugStop, DebugStopReason
from emu.debug.views import CallSite, CodeLine, CpuState, PatchedBytes
from emu.threads.thread import OperationThread, TaskThread, Thread

__all__ = [
    "AtAddress",
    "AtEvent",
    "AtPhase",
    "Breakpoint",
    "CallSite",
    "CodeLine",
    "CpuState",
    "DataAccess",
    "DebugError",
    "DebugStop",
    "DebugStopReason",
    "Debugger",
    "FrameSlot",
    "OperationThread",
    "PatchedBytes",
    "StackFrame",
    "TaskThread",
    "Thread",
    "When",
]
