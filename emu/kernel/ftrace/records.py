"""Patch sites (``struct dyn_ftrace``): their users, their call targets and their patching."""

import enum
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from errno import EINVAL

from asm.encodings import NOP5, call_rel32, jmp_rel32
from emu.kernel.errors import KernelError
from emu.kernel.ftrace.ops import FtraceOps, FtraceOpsFlag
from emu.kernel.process_context import PointKind, ProcessContext
from emu.kernel.text.entry import SITE_SIZE
from emu.kernel.text.kallsyms import Kallsyms
from emu.kernel.text.text_poke import CALL, JMP, TextPoke
from emu.machine.machine import Machine

JMP_FLAG = 1

_REL32 = struct.Struct("<Bi")
"""A call or jmp: opcode and displacement."""


def ftrace_jmp_set(address: int) -> int:
    """Mark a direct address as reached by jmp (6.19)."""
    return address | JMP_FLAG


def ftrace_is_jmp(address: int) -> bool:
    """True if a direct address is reached by jmp."""
    return bool(address & JMP_FLAG)


class DynFtraceFlag(enum.IntFlag):
    """``FTRACE_FL_*`` of a site (include/linux/ftrace.h); the low 19 bits count its users.

    Those with ``_EN`` describe its current text.
    """

    ENABLED = 1 << 31
    REGS = 1 << 30
    REGS_EN = 1 << 29
    TRAMP = 1 << 28
    TRAMP_EN = 1 << 27
    IPMODIFY = 1 << 26
    DIRECT = 1 << 24
    DIRECT_EN = 1 << 23


@dataclass(eq=False, slots=True)
class DynFtrace:
    """One patch site."""

    ip: int
    module: str = ""
    address: int = 0
    """Address that its text reaches, with JMP_FLAG if by jmp; 0 for a nop."""
    users: tuple[FtraceOps, ...] = ()
    """Ops that are enabled on it, oldest first."""
    patched: tuple[FtraceOps, ...] = ()
    """Ops that its text was last written for."""

    @property
    def count(self) -> int:
        """Number of ops that are enabled on it."""
        return len(self.users)

    @property
    def flags(self) -> int:
        """``dyn_ftrace.flags``."""
        flags, live = _wanted(self.users), _wanted(self.patched)
        if self.address:
            flags |= DynFtraceFlag.ENABLED
            # The EN bits are one below those that they repeat.
            repeated = live & (DynFtraceFlag.REGS | DynFtraceFlag.TRAMP)
            if len(self.patched) == 1:
                repeated |= live & DynFtraceFlag.DIRECT
            flags |= repeated >> 1
        return int(flags) | len(self.users)

    @property
    def has_ipmodify(self) -> bool:
        """True if one of its users changes regs->ip."""
        return any(ops.flags & FtraceOpsFlag.IPMODIFY for ops in self.users)


def _wanted(users: tuple[FtraceOps, ...]) -> DynFtraceFlag:
    flags = DynFtraceFlag(0)
    for ops in users:
        if ops.flags & FtraceOpsFlag.SAVE_REGS:
            flags |= DynFtraceFlag.REGS
        if ops.flags & FtraceOpsFlag.IPMODIFY:
            flags |= DynFtraceFlag.IPMODIFY
        if ops.is_direct:
            flags |= DynFtraceFlag.DIRECT
    if len(users) == 1 and users[0].trampoline:
        flags |= DynFtraceFlag.TRAMP
    return flags


class FtraceRecords:
    """The patch sites of one kernel.

    ``ftrace_caller`` and ``ftrace_regs_caller`` are the call targets of sites with several users.
    """

    def __init__(self, machine: Machine, process: ProcessContext, kallsyms: Kallsyms, text_poke: TextPoke) -> None:
        self._machine, self._process, self._kallsyms, self._poke = machine, process, kallsyms, text_poke
        self.records: dict[int, DynFtrace] = {}
        self.ftrace_caller = 0
        self.ftrace_regs_caller = 0
        self.updates = 0
        """Number of patched batches."""
        self.listed = 0
        """Sites whose text reaches the list function."""

    def add_site(self, ip: int, module: str = "") -> DynFtrace:
        """Register a nop5 in the text as a patch site."""
        record = self.records[ip] = DynFtrace(ip, module)
        return record

    def ftrace_location(self, address: int) -> int:
        """The site at an address, or of the function that begins there; 0 if there is none."""
        if address in self.records:
            return address
        symbol = self._kallsyms.at(address)
        if symbol is None or symbol.address != address:
            return 0
        within = (ip for ip in range(address, address + SITE_SIZE) if ip in self.records)
        return next(within, 0)

    def target(self, users: tuple[FtraceOps, ...]) -> int | None:
        """Call target of a site with these users (``ftrace_get_addr_new``): the only user's trampoline, or the stub
        that calls the list function; None for the direct address, if the only user is a direct caller.
        """
        if not users:
            return 0
        if len(users) == 1:
            only = users[0]
            if only.is_direct:
                return None
            if only.trampoline:
                return only.trampoline
        if any(ops.flags & FtraceOpsFlag.SAVE_REGS for ops in users):
            return self.ftrace_regs_caller
        return self.ftrace_caller

    def retarget(
        self,
        ips: Iterable[int],
        direct: Mapping[int, int],
        *,
        enter: FtraceOps | None = None,
        leave: FtraceOps | None = None,
    ) -> "SiteChange":
        """Let an ops enter or leave sites. The text is unchanged until ``write``.

        ``direct`` has the direct addresses by site.
        """
        touched: dict[DynFtrace, tuple[FtraceOps, ...]] = {}
        todo: dict[DynFtrace, int] = {}
        records = self.records
        entering = () if enter is None else (enter,)
        # Sites with the same users have the same ones afterwards: one tuple for all of them.
        after: dict[tuple[FtraceOps, ...], tuple[tuple[FtraceOps, ...], int | None]] = {}
        for ip in sorted(ips):
            record = records[ip]
            before = record.users
            if before not in after:
                users = (*(ops for ops in before if ops is not leave), *entering)
                after[before] = users, self.target(users)
            record.users, address = after[before]
            touched[record] = before
            if address is None:
                address = direct[ip]
            if address != record.address:
                todo[record] = address
        return SiteChange(touched, todo)

    def reaches_list(self, change: "SiteChange") -> bool:
        """True if a site of the change will reach the list function."""
        stubs = (self.ftrace_caller, self.ftrace_regs_caller)
        return any(address in stubs for address in change.todo.values())

    def write(self, change: "SiteChange") -> None:
        """Patch sites: check the bytes of all before any is written, then one batch (``ftrace_replace_code``).

        -EINVAL if a site's bytes are not the expected ones, DisplacementError if one can't reach its target; nothing
        was patched then.
        """
        new: list[bytes] = []
        sites = list(change.todo)
        for some in self._process.stretches(PointKind.PATCH, len(sites), lambda n: f"site at {sites[n].ip:#x}"):
            new.extend(self._new_code(sites[some], change.todo))
        stubs = (self.ftrace_caller, self.ftrace_regs_caller)
        if new:
            with self._poke.text_mutex:
                self.updates += 1
                for (record, address), text in zip(change.todo.items(), new, strict=True):
                    self._poke.batch_add(record.ip, text)
                    self.listed += (address in stubs) - (record.address in stubs)
                    record.address = address
                self._poke.batch_finish()
        for record in change.touched:
            record.patched = record.users

    def _new_code(self, sites: list[DynFtrace], addresses: Mapping[DynFtrace, int]) -> Iterator[bytes]:
        held = self._machine.read_each([record.ip for record in sites], SITE_SIZE)
        for record, found in zip(sites, held, strict=True):
            ip = record.ip
            expected = site_code(ip, record.address)
            if found != expected:
                name = self._kallsyms.name(ip) or hex(ip)
                raise KernelError(
                    EINVAL, f"ftrace: {name} holds {found.hex()}, not {expected.hex()}; nothing was patched"
                )
            yield site_code(ip, addresses[record])


@dataclass(slots=True)
class SiteChange:
    """Sites whose users changed, with their former users; sites to patch, by address, with their targets."""

    touched: dict[DynFtrace, tuple[FtraceOps, ...]]
    todo: dict[DynFtrace, int]

    def undo(self) -> None:
        """Restore the former users. Only before anything is written."""
        for record, users in self.touched.items():
            record.users = users


def site_code(ip: int, address: int) -> bytes:
    """Bytes of a site that reaches an address: a nop5 for 0."""
    if not address:
        return NOP5
    target, is_jmp = address & ~JMP_FLAG, address & JMP_FLAG
    try:
        return _REL32.pack(JMP if is_jmp else CALL, target - ip - SITE_SIZE)
    except struct.error:
        # Out of reach, or only around the end of the address space: these know.
        return jmp_rel32(ip, target) if is_jmp else call_rel32(ip, target)
