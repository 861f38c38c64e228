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
    """``enum ftrace_ops_cmd``: what a direct caller is asked when livepatch comes to its site, or goes."""

    ENABLE_SHARE_IPMODIFY_SELF = 0
    """A direct caller comes to a site that has an IPMODIFY user."""
    ENABLE_SHARE_IPMODIFY_PEER = 1
    """An IPMODIFY user comes to a site that has a direct caller."""
    DISABLE_SHARE_IPMODIFY_PEER = 2
    """The IPMODIFY user went."""


Callback = Callable[[int, int, "FtraceOps", StructView], Any]
"""``ftrace_func_t`` in Python: ip of the site, address that the function returns to, the ops, struct pt_regs.

Arguments are in ``regs.di`` and so on. Without SAVE_REGS only what a call may change is there, and ``regs.cs`` is 0.
A new ``regs.ip`` redirects the function.
"""


@dataclass(eq=False, slots=True)
class FtraceOps:
    """A user of ftrace: what it wants called (``func``: a Python function, a symbol or a guest address) and where.

    ``filter``: the sites that it wants, all there are where it is empty. ``private``: a guest address for its code.
    ``ops_func`` answers FtraceOpsCmd for the site given; it refuses with a KernelError (-EAGAIN, -EBUSY).
    """

    name: str
    func: Callback | str | int | None = None
    flags: FtraceOpsFlag = NO_FLAGS
    private: int = 0
    filter: set[int] = field(default_factory=set)
    ops_func: Callable[["FtraceOps", int, FtraceOpsCmd], None] | None = None
    direct_call: int = 0
    """Where the sites of a direct caller go, if all go to one address."""
    trampoline: int = 0
    """Guest address of the code that a site calls for this ops alone; 0: none."""
    address: int = 0
    """Guest address of its struct ftrace_ops, 0 while no guest code can come across it."""
    filter_hash: int = 0
    """Guest address of its filter's ftrace_hash, 0 likewise."""
    callback: int = 0
    """Guest address behind ``func`` while it is registered."""
    sites: set[int] = field(default_factory=set)
    """Where it is enabled."""
    is_direct: bool = False
    """Whether it is a registered direct caller: ``flags`` have DIRECT (which takes longer to find out)."""

    @property
    def keeps_struct(self) -> bool:
        """Whether its own trampoline hands out its struct ftrace_ops."""
        return bool(self.flags & FtraceOpsFlag.ALLOC_TRAMP)

    @property
    def enabled(self) -> bool:
        """Whether it is registered."""
        return bool(self.flags & FtraceOpsFlag.ENABLED)
