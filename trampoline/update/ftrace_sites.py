"""How the patch sites of kernel functions reach their trampolines: through ftrace's direct calls.

Two ways that kernels took. One ftrace_ops for each trampoline (6.0 to 6.18): every attach is a registration of its own.
One for all (``direct_ops``, CONFIG_HAVE_SINGLE_FTRACE_DIRECT_OPS): sites are added, changed and taken off in batches.
"""

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from emu.kernel.ftrace.ops import FtraceOps, FtraceOpsCmd
from emu.kernel.kernel import Kernel

if TYPE_CHECKING:
    from trampoline.update.bpf_trampoline import BpfTrampoline


class SiteBatches(Protocol):
    """Sites that are changed in batches."""

    def apply(self, batch: "SiteBatch", trampolines: Mapping[int, "BpfTrampoline"]) -> None:
        """Apply a batch, all or nothing; ``trampolines`` by site of what is added."""


class DirectSites(Protocol):
    """Sites and where they go. Each call leaves everything as it was when it raises (see ``emu.kernel.ftrace``)."""

    @property
    def batches(self) -> SiteBatches | None:
        """The same sites, changed in batches; None where each change is a registration of its own."""
        ...

    def register(self, trampoline: "BpfTrampoline", ip: int, direct: int) -> None:
        """Let a site that is a nop reach ``direct``."""

    def modify(self, trampoline: "BpfTrampoline", ip: int, direct: int, *, lock_direct_mutex: bool) -> None:
        """Let the site of a trampoline reach another address."""

    def unregister(self, trampoline: "BpfTrampoline", ip: int, direct: int) -> None:
        """Turn the site of a trampoline back into a nop."""


class OpsEach:
    """One ftrace_ops for each trampoline (``tr->fops``)."""

    batches = None

    def __init__(self, kernel: Kernel) -> None:
        self._ftrace = kernel.ftrace
        self._ops: dict[int, FtraceOps] = {}

    def register(self, trampoline: "BpfTrampoline", ip: int, direct: int) -> None:
        """See DirectSites."""
        ops = FtraceOps(f"bpf_trampoline of {trampoline.target.name}", ops_func=trampoline.share_ipmodify)
        self._ftrace.ftrace_set_filter_ip(ops, ip)
        self._ftrace.register_ftrace_direct(ops, direct)
        self._ops[ip] = ops

    def modify(self, trampoline: "BpfTrampoline", ip: int, direct: int, *, lock_direct_mutex: bool) -> None:
        """See DirectSites."""
        self._ftrace.modify_ftrace_direct(self._ops[ip], direct, lock_direct_mutex=lock_direct_mutex)

    def unregister(self, trampoline: "BpfTrampoline", ip: int, direct: int) -> None:
        """See DirectSites."""
        self._ftrace.unregister_ftrace_direct(self._ops[ip], direct, free_filters=True)
        del self._ops[ip]


@dataclass(slots=True)
class SiteBatch:
    """Changes to apply at once: addresses by site. ``removed`` has the addresses that the sites reach now."""

    added: dict[int, int] = field(default_factory=dict)
    modified: dict[int, int] = field(default_factory=dict)
    removed: dict[int, int] = field(default_factory=dict)


class SingleOps:
    """One ftrace_ops for all trampolines; livepatch finds a site's trampoline by its ip (``trampoline_ip_table``)."""

    def __init__(self, kernel: Kernel) -> None:
        self._ftrace = kernel.ftrace
        self._ops = FtraceOps("direct_ops", ops_func=self._share_ipmodify)
        self._by_ip: dict[int, BpfTrampoline] = {}

    @property
    def batches(self) -> "SingleOps":
        """See DirectSites."""
        return self

    def register(self, trampoline: "BpfTrampoline", ip: int, direct: int) -> None:
        """See DirectSites."""
        self.apply(SiteBatch(added={ip: direct}), {ip: trampoline})

    def modify(self, trampoline: "BpfTrampoline", ip: int, direct: int, *, lock_direct_mutex: bool) -> None:
        """See DirectSites."""
        self._ftrace.update_ftrace_direct_mod(self._ops, {ip: direct}, lock_direct_mutex=lock_direct_mutex)

    def unregister(self, trampoline: "BpfTrampoline", ip: int, direct: int) -> None:
        """See DirectSites."""
        self.apply(SiteBatch(removed={ip: direct}), {})

    def apply(self, batch: SiteBatch, trampolines: Mapping[int, "BpfTrampoline"]) -> None:
        """Apply a batch with one ftrace update for each of its three kinds; ``trampolines`` by site of what is added.

        What fails takes back what was done before it, so that all sites are as they were.
        """
        ftrace, ops = self._ftrace, self._ops
        with ExitStack() as undo:
            if batch.added:
                self._by_ip.update({ip: trampolines[ip] for ip in batch.added})
                undo.callback(self._forget, batch.added)
                ftrace.update_ftrace_direct_add(ops, batch.added)
                undo.callback(ftrace.update_ftrace_direct_del, ops, batch.added)
            if batch.removed:
                ftrace.update_ftrace_direct_del(ops, batch.removed)
                undo.callback(ftrace.update_ftrace_direct_add, ops, batch.removed)
            if batch.modified:
                ftrace.update_ftrace_direct_mod(ops, batch.modified)
            undo.pop_all()
        self._forget(batch.removed)

    def _forget(self, ips: Iterable[int]) -> None:
        for ip in ips:
            del self._by_ip[ip]

    def _share_ipmodify(self, ops: FtraceOps, ip: int, cmd: FtraceOpsCmd) -> None:
        self._by_ip[ip].share_ipmodify(ops, ip, cmd)
