"""Stepping trampolines: what is looked at has its names. ``emu.debug`` with what BPF knows."""

from emu.debug import (
    Access,
    AtAddress,
    AtEvent,
    AtPhase,
    Breakpoint,
    CallSite,
    CodeLine,
    CpuState,
    DebugError,
    OperationThread,
    PatchedBytes,
    Stop,
    StopReason,
    TaskThread,
    Thread,
    When,
)
from trampoline.debug.debugger import Debugger
from trampoline.debug.frame import Frame, Slot

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
