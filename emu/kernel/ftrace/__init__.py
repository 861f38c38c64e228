"""ftrace: patch sites, who wants to be called at them, and calls straight to an address (kernel/trace/ftrace.c).

A site with one user calls that user's own code: a direct caller's address, or a trampoline that was made for one
callback. With several it calls ``ftrace_regs_caller`` or ``ftrace_caller``, whose list function runs every callback,
and a direct caller's address comes last.
"""

from emu.kernel.ftrace.direct import Ftrace
from emu.kernel.ftrace.ops import Callback, FtraceOps, FtraceOpsCmd, FtraceOpsFlag
from emu.kernel.ftrace.records import JMP_FLAG, DynFtrace, DynFtraceFlag, ftrace_is_jmp, ftrace_jmp_set

__all__ = [
    "JMP_FLAG",
    "Callback",
    "DynFtrace",
    "DynFtraceFlag",
    "Ftrace",
    "FtraceOps",
    "FtraceOpsCmd",
    "FtraceOpsFlag",
    "ftrace_is_jmp",
    "ftrace_jmp_set",
]
