"""ftrace: patch sites, and calls from them straight to an address ("direct calls"; kernel/trace/ftrace.c).

A direct address with bit 0 set asks for a jmp instead of a call at the site (``ftrace_jmp_set``, 6.19).
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from asm.encodings import call_rel32, jmp_rel32
from emu.kernel.entry import NOP5, SITE_SIZE
from emu.kernel.errors import KernelError
from emu.kernel.kallsyms import Kallsyms
from emu.kernel.text_poke import TextPoke
from emu.machine import Machine
from emu.process import Lock, PointKind, ProcessContext

EBUSY, EINVAL, ENOENT = 16, 22, 2

JMP_FLAG = 1


def ftrace_jmp_set(address: int) -> int:
    """The direct address that is reached by jmp."""
    return address | JMP_FLAG


def ftrace_is_jmp(address: int) -> bool:
    """Whether a direct address is reached by jmp."""
    return bool(address & JMP_FLAG)


@dataclass(slots=True)
class DynFtrace:
    """One patch site (``struct dyn_ftrace``). ``direct`` is the address that its text reaches now, 0 for a nop."""

    ip: int
    module: str = ""
    direct: int = 0


@dataclass(slots=True)
class FtraceOps:
    """A user of ftrace (``struct ftrace_ops``): the sites it wants and, for a direct user, where they go."""

    name: str
    filter: set[int] = field(default_factory=set)
    direct_call: int = 0
    enabled: bool = False


class Ftrace:
    """The patch sites of one kernel, and the direct callers on them."""

    def __init__(self, machine: Machine, process: ProcessContext, kallsyms: Kallsyms, text_poke: TextPoke) -> None:
        self._machine, self._process, self._kallsyms, self._poke = machine, process, kallsyms, text_poke
        self.direct_mutex = Lock(process, "direct_mutex")
        self.records: dict[int, DynFtrace] = {}
        self.direct_functions: dict[int, int] = {}
        self.updates = 0
        """Times that sites were patched, in batches."""

    def add_site(self, ip: int, module: str = "") -> DynFtrace:
        """Make a nop5 in the text known as a patch site."""
        record = self.records[ip] = DynFtrace(ip, module)
        return record

    def remove_sites(self, module: str) -> None:
        """Forget the sites of a module that goes away (``ftrace_release_mod``)."""
        for ip in [ip for ip, record in self.records.items() if record.module == module]:
            del self.records[ip]

    def ftrace_location(self, address: int) -> int:
        """The site at an address, or of the function that begins there; 0 where there is none."""
        if address in self.records:
            return address
        symbol = self._kallsyms.at(address)
        if symbol is None or symbol.address != address:
            return 0
        within = (ip for ip in range(address, address + SITE_SIZE) if ip in self.records)
        return next(within, 0)

    def ftrace_set_filter_ip(self, ops: FtraceOps, ip: int, *, remove: bool = False) -> None:
        """Add a site to the filter of ``ops``, or take it out. -EINVAL for no site, -ENOENT for taking out what is
        not in.
        """
        location = self.ftrace_location(ip)
        if not location:
            raise KernelError(EINVAL, f"{ip:#x} is no ftrace location")
        if remove and location not in ops.filter:
            raise KernelError(ENOENT, f"{location:#x} is not in the filter of {ops.name}")
        self._process.point(PointKind.ALLOC, f"filter hash of {ops.name}")
        if remove:
            ops.filter.discard(location)
        else:
            ops.filter.add(location)

    def register_ftrace_direct(self, ops: FtraceOps, address: int) -> None:
        """Let the sites in the filter of ``ops`` reach ``address``.

        -EINVAL where ``ops`` is in use or its filter is empty, -EBUSY where a site has a direct caller, -ENOMEM, and
        what patching raises; then everything is as it was.
        """
        if ops.direct_call or ops.enabled or not ops.filter:
            raise KernelError(EINVAL, f"{ops.name} can't be registered: in use, or no site in its filter")
        with self.direct_mutex:
            for ip in sorted(ops.filter):
                if ip in self.direct_functions:
                    raise KernelError(EBUSY, f"the site at {ip:#x} has a direct caller already")
            self._process.point(PointKind.ALLOC, f"direct_functions with {ops.name}")
            self.direct_functions |= dict.fromkeys(ops.filter, address)
            try:
                self._update(ops.filter, address)
            except BaseException:
                for ip in ops.filter:
                    del self.direct_functions[ip]
                raise
            ops.direct_call, ops.enabled = address, True

    def modify_ftrace_direct(self, ops: FtraceOps, address: int) -> None:
        """Let the sites of ``ops`` reach another address. -EINVAL where it is not a registered direct user."""
        if not ops.direct_call or not ops.enabled:
            raise KernelError(EINVAL, f"{ops.name} is not a registered direct user")
        with self.direct_mutex:
            self._update(ops.filter, address)
            self.direct_functions |= dict.fromkeys(ops.filter, address)
            ops.direct_call = address

    def unregister_ftrace_direct(self, ops: FtraceOps, address: int, *, free_filters: bool = False) -> None:
        """Turn the sites of ``ops`` back into nops. -EINVAL where it is not registered, or with another address."""
        if not ops.direct_call or not ops.enabled or ops.direct_call != address:
            raise KernelError(EINVAL, f"{ops.name} is not registered with {address:#x}")
        with self.direct_mutex:
            self._update(ops.filter, 0)
            for ip in ops.filter:
                del self.direct_functions[ip]
            ops.direct_call, ops.enabled = 0, False
            if free_filters:
                ops.filter.clear()

    def _update(self, ips: Iterable[int], direct: int) -> None:
        """Patch sites: check the bytes of all before any is written, then one batch in order of address (§
        ``ftrace_replace_code``).
        """
        todo = [record for ip in sorted(ips) if (record := self.records[ip]).direct != direct]
        new = [(record, self._code(record.ip, direct)) for record in todo]
        for record, _ in new:
            self._process.point(PointKind.PATCH, f"site at {record.ip:#x}")
            expected = self._code(record.ip, record.direct)
            found = self._machine.read(record.ip, SITE_SIZE)
            if found != expected:
                name = self._kallsyms.name(record.ip) or hex(record.ip)
                raise KernelError(
                    EINVAL, f"ftrace: {name} holds {found.hex()}, not {expected.hex()}; nothing was patched"
                )
        with self._poke.text_mutex:
            self.updates += 1
            for record, code in new:
                self._poke.batch_add(record.ip, code)
                record.direct = direct
            self._poke.batch_finish()

    @staticmethod
    def _code(ip: int, direct: int) -> bytes:
        if not direct:
            return NOP5
        target = direct & ~JMP_FLAG
        return jmp_rel32(ip, target) if ftrace_is_jmp(direct) else call_rel32(ip, target)
