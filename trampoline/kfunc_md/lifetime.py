"""How long metadata and its list nodes live: what is allocated, and the grace periods before it is freed."""

import struct
from collections.abc import Callable, Iterable, Sequence

from emu.kernel.kernel import Kernel
from emu.kernel.rcu import RcuFlavour
from emu.structs import percpu_ref_data
from trampoline.kfunc_md.backend import MetadataBackend
from trampoline.kfunc_md.structs import kfunc_md, kfunc_md_tramp_prog

_TAIL = struct.Struct("<HBBB")
_FUNC, _PCREF, _USERS = (kfunc_md.offset(name) for name in ("func", "pcref", "users"))
_NODE = struct.Struct("<QQQ")


class Lifetimes:
    """Metadata objects and list nodes of one set, from their allocation to kfree.

    Metadata that is looked up no more: 1 ``percpu_ref_kill`` (it was unlinked before), which waits for callers that
    hold it over the original call; 2 its release: percpu_ref_exit, an RCU-tasks-trace grace period for sleepable
    programs; 3 an RCU-tasks one for other programs and the stub; 4 kfree. List nodes: 2 to 4. ``refs`` False: nobody
    holds metadata over the original call, so that it has no percpu_ref, and what is retired together waits together.
    """

    def __init__(self, kernel: Kernel, backend: MetadataBackend, *, refs: bool) -> None:
        self._kernel, self._backend, self._refs = kernel, backend, refs
        self._mds: dict[int, int] = {}
        self._nodes: set[int] = set()
        self._referenced: set[int] = set()

    @property
    def memory(self) -> dict[str, int]:
        """Bytes by kind, what still waits for a grace period included; ``percpu`` is for all CPUs together."""
        refs = len(self._referenced)
        return {
            "kfunc_md": kfunc_md.size * len(self._mds),
            "kfunc_md_tramp_prog": kfunc_md_tramp_prog.size * len(self._nodes),
            "percpu_ref_data": percpu_ref_data.size * refs,
            "percpu": 8 * len(self._kernel.percpu_areas) * refs,
        }

    def alloc_md(self, func: int) -> int:
        """Metadata that nobody finds yet, with a live reference count. KernelError (-ENOMEM): nothing stays behind."""
        name = f"kfunc_md of {func:#x}"
        md = self._backend.nodes.alloc(kfunc_md.size, name)
        if self._refs:
            try:
                self._kernel.percpu_refs.init(md + _PCREF, lambda: self._released(md), name)
            except BaseException:
                self._backend.nodes.free(md)
                raise
            self._referenced.add(md)
        self._mds[md] = func
        return md

    def fill_md(
        self, md: int, func: int, nr_args: int, users: int, programs: tuple[int, int, int], origin: bool, count: int
    ) -> None:
        """Write what an object begins with; its reference count is there already."""
        machine = self._kernel.machine
        machine.write(md + _FUNC, struct.pack("<4Q", func, *programs))
        machine.write(md + _USERS, _TAIL.pack(users, origin, count, nr_args))

    def copy_md(self, md: int) -> int:
        """Another object with the same content and a reference count of its own. KernelError (-ENOMEM)."""
        machine = self._kernel.machine
        copy = self.alloc_md(self._mds[md])
        machine.write(copy + _FUNC, machine.read(md + _FUNC, _PCREF - _FUNC))
        machine.write(copy + _USERS, machine.read(md + _USERS, _TAIL.size))
        return copy

    def discard_md(self, md: int) -> None:
        """Free metadata that nobody ever found."""
        self._exit(md)
        self._free(md)

    def alloc_node(self, prog: int, cookie: int) -> int:
        """A list node for a program. KernelError (-ENOMEM)."""
        node = self._kernel.slab.alloc(kfunc_md_tramp_prog.size, f"kfunc_md_tramp_prog of {prog:#x}")
        self._kernel.machine.write(node, _NODE.pack(0, prog, cookie))
        self._nodes.add(node)
        return node

    def discard_nodes(self, nodes: Iterable[int]) -> None:
        """Free nodes now: those that nobody ever found."""
        for node in nodes:
            self._nodes.remove(node)
            self._kernel.slab.free(node)

    def retire(self, mds: Sequence[int], nodes: Sequence[int] = ()) -> None:
        """Free what look-ups and walks find no more, after its grace periods."""
        if self._refs:
            for md in mds:
                self._kernel.percpu_refs.kill(md + _PCREF)
            mds = ()
        if mds or nodes:
            self._after_grace_periods(lambda: self._free_all(mds, nodes))

    def _released(self, md: int) -> None:
        self._exit(md)
        self._after_grace_periods(lambda: self._free_all((md,), ()))

    def _after_grace_periods(self, free: Callable[[], None]) -> None:
        rcu = self._kernel.rcu
        rcu.call(RcuFlavour.RCU_TASKS_TRACE, lambda: rcu.call(RcuFlavour.RCU_TASKS, free))

    def _free_all(self, mds: Sequence[int], nodes: Sequence[int]) -> None:
        self._backend.forget([self._mds[md] for md in mds])
        for md in mds:
            self._free(md)
        self.discard_nodes(nodes)

    def _exit(self, md: int) -> None:
        if md in self._referenced:
            self._kernel.percpu_refs.exit(md + _PCREF)
            self._referenced.remove(md)

    def _free(self, md: int) -> None:
        del self._mds[md]
        self._backend.nodes.free(md)
