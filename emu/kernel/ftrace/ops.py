"""``struct ftrace_ops``: one user of ftrace."""

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from emu.kernel.structs import StructView


class FtraceOpsFlag(enum.IntFlag):
    """``FTRACE_OPS_FL_*`` (include/linux/ftrace.h)."""

    ENABLED = 1 << 0
    DYNAMIC = 1 << 1
    SAVE_REGS = 1 << 2
    RECURSION = 1 << 4
    STUB = 1 << 5
    INITIALIZED = 1 << 6
    ALLOC_TRAMP = 1 << 11
    IPMODIFY = 1 << 12
    DIRECT = 1 << 17


NO_FLAGS = FtraceOpsFlag(0)


class FtraceOpsCmd(enum.Enum):
    """``enum ftrace_ops_cmd``: command to a direct caller when livepatch joins or leaves its site."""

    ENABLE_SHARE_IPMODIFY_SELF = 0
    """A direct caller joins a site that has an IPMODIFY user."""
    ENABLE_SHARE_IPMODIFY_PEER = 1
    """An IPMODIFY user joins a site that has a direct caller."""
    DISABLE_SHARE_IPMODIFY_PEER = 2
    """The IPMODIFY user left."""


Callback = Callable[[int, int, "FtraceOps", StructView], Any]
"""``ftrace_func_t`` in Python: ip of the site, return address of the function, the ops, struct pt_regs.

Arguments are in ``regs.di`` etc. Without SAVE_REGS only caller-saved registers are there, and ``regs.cs`` is 0.
A new ``regs.ip`` redirects the function.
"""


@dataclass(eq=False, slots=True)
class FtraceOps:
    """A user of ftrace: its callback (``func``: a Python function, a symbol or a guest address) and its sites.

    ``filter``: its sites, all if it is empty. ``private``: a guest address for its code. ``ops_func`` handles an
    FtraceOpsCmd for a site, and may raise KernelError (-EAGAIN, -EBUSY).
    """

    name: str
    func: Callback | str | int | None = None
    flags: FtraceOpsFlag = NO_FLAGS
    private: int = 0
    filter: set[int] = field(default_factory=set)
    ops_func: Callable[["FtraceOps", int, FtraceOpsCmd], None] | None = None
    direct_call: int = 0
    """Address of a direct caller, if all its sites have the same."""
    trampoline: int = 0
    """Guest address of the trampoline that sites with only this ops call; 0: none."""
    address: int = 0
    """Guest address of its struct ftrace_ops, 0 while no guest code can reach it."""
    filter_hash: int = 0
    """Guest address of its filter's ftrace_hash, 0 likewise."""
    callback: int = 0
    """Guest address of ``func``'s code while it is registered."""
    sites: set[int] = field(default_factory=set)
    """Sites on which it is enabled."""
    is_direct: bool = False
    """True for a registered direct caller: ``flags`` contain DIRECT (slower to test)."""

    @property
    def keeps_struct(self) -> bool:
        """True if its own trampoline passes on its struct ftrace_ops."""
        return bool(self.flags & FtraceOpsFlag.ALLOC_TRAMP)

    @property
    def enabled(self) -> bool:
        """True if it is registered."""
        return bool(self.flags & FtraceOpsFlag.ENABLED)
