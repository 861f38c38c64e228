"""How long metadata and its list nodes live: what is allocated, and the grace periods before it is freed."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from emu.kernel.kernel import Kernel
from emu.kernel.rcu import RcuFlavour
from emu.kernel.structs import percpu_ref_data
from emu.machine.machine import Machine
from trampoline.kfunc_md.backend import MetadataBackend
from trampoline.kfunc_md.structs import kfunc_md, kfunc_md_tramp_prog

_PCREF, _USERS = kfunc_md.offset("pcref"), kfunc_md.offset("users")
_COUNTS = ("users", "bpf_origin_call", "bpf_prog_cnt", "nr_args")
_CONTENT = kfunc_md.codec("func", "bpf_progs", *_COUNTS)
_TAIL = kfunc_md.codec(*_COUNTS, start=_USERS)
_NODE = kfunc_md_tramp_prog.codec("next", "prog", "cookie")


@dataclass(slots=True)
class MdContent:
    """The fields of a ``kfunc_md`` that process context changes, read and written at once.

    ``programs``: the heads of its lists.
    """

    nr_args: int
    users: int = 1
    programs: list[int] = field(default_factory=lambda: [0, 0, 0])
    bpf_origin_call: bool = False
    bpf_prog_cnt: int = 0

    @classmethod
    def read(cls, machine: Machine, md: int) -> "MdContent":
        """That of an object."""
        _, *programs, users, origin, count, nr_args = _CONTENT.unpack(machine.read(md, _CONTENT.size))
        return cls(nr_args, users, programs, bool(origin), count)

    def pack(self, func: int) -> bytes:
        """A whole object, which has no reference count yet."""
        return _CONTENT.pack(func, *self.programs, self.users, self.bpf_origin_call, self.bpf_prog_cnt, self.nr_args)

    def write_counts(self, machine: Machine, md: int) -> None:
        """All but the lists."""
        counts = _TAIL.pack(self.users, self.bpf_origin_call, self.bpf_prog_cnt, self.nr_args)
        machine.write(md + _USERS, counts)


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

    def alloc_md(self, func: int, content: MdContent) -> int:
        """Metadata that nobody finds yet, with a live reference count. KernelError (-ENOMEM): nothing stays behind."""
        name = f"kfunc_md of {func:#x}"
        md = self._backend.nodes.alloc(kfunc_md.size, name, content.pack(func))
        if self._refs:
            try:
                self._kernel.percpu_refs.init(md + _PCREF, lambda: self._released(md), name)
            except BaseException:
                self._backend.nodes.free(md)
                raise
            self._referenced.add(md)
        self._mds[md] = func
        return md

    def copy_md(self, md: int) -> int:
        """Another object with the same content and a reference count of its own. KernelError (-ENOMEM)."""
        return self.alloc_md(self._mds[md], MdContent.read(self._kernel.machine, md))

    def discard_md(self, md: int) -> None:
        """Free metadata that nobody ever found."""
        self._exit(md)
        self._free(md)

    def alloc_node(self, prog: int, cookie: int) -> int:
        """A list node for a program. KernelError (-ENOMEM)."""
        content = _NODE.pack(0, prog, cookie)
        node = self._kernel.slab.alloc(kfunc_md_tramp_prog.size, f"kfunc_md_tramp_prog of {prog:#x}", content)
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
            with self._kernel.rcu.sharing():
                for md in mds:
                    self._kernel.percpu_refs.kill(md + _PCREF)
            mds = ()
        if mds or nodes:
            self._after_grace_periods(lambda: self._free_all(mds, nodes))

    def _released(self, md: int) -> None:
        self._exit(md)
        self._kernel.rcu.call_bulk(RcuFlavour.RCU_TASKS_TRACE, self._no_longer_traced, md)

    def _no_longer_traced(self, mds: list[int]) -> None:
        self._kernel.rcu.call(RcuFlavour.RCU_TASKS, lambda: self._free_all(mds, ()))

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
