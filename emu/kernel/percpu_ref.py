"""percpu_ref in process context: init, kill, release (lib/percpu-refcount.c). Guest code does get and put."""

from collections.abc import Callable, Collection

from emu.kernel.mm.slab import PerCpu, Slab
from emu.kernel.rcu import Rcu, RcuFlavour
from emu.kernel.structs import (
    PERCPU_COUNT_BIAS,
    PERCPU_REF_ATOMIC_DEAD,
    percpu_ref,
    percpu_ref_data,
)
from emu.machine.machine import Machine
from emu.machine.vcpu import Vcpu

_MASK = (1 << 64) - 1


class PercpuRefs:
    """The percpu_refs of one kernel, by guest address."""

    def __init__(self, machine: Machine, slab: Slab, percpu: PerCpu, rcu: Rcu) -> None:
        self._machine, self._slab, self._percpu, self._rcu = machine, slab, percpu, rcu
        self._release: dict[int, Callable[[], None]] = {}
        self.release_address = 0
        """Guest address of ``percpu_ref_release``, which the last put of a killed ref calls."""

    def init(self, ref: int, release: Callable[[], None], name: str) -> None:
        """``percpu_ref_init``: a live ref with count 1 at guest address ``ref``. -ENOMEM: nothing is allocated."""
        counter = self._percpu.alloc(8, f"percpu_ref of {name}")
        try:
            data = self._slab.alloc(percpu_ref_data.size, f"percpu_ref_data of {name}")
        except BaseException:
            self._percpu.free(counter)
            raise
        view = percpu_ref_data.view(self._machine, data)
        view.count, view.release, view.ref = PERCPU_COUNT_BIAS + 1, self.release_address, ref
        head = percpu_ref.view(self._machine, ref)
        head.percpu_count_ptr, head.data = counter, data
        self._release[ref] = release

    def kill(self, ref: int) -> None:
        """``percpu_ref_kill``: no longer per CPU; after an RCU grace period the counts are summed and the initial
        one dropped.
        """
        head = percpu_ref.view(self._machine, ref)
        head.percpu_count_ptr |= PERCPU_REF_ATOMIC_DEAD
        self._rcu.call(RcuFlavour.RCU, lambda: self._switched(ref))

    def count(self, ref: int) -> int:
        """Number of references, including the initial one of a live ref."""
        head = percpu_ref.view(self._machine, ref)
        total = int(percpu_ref_data.view(self._machine, head.data).count)
        if total >= PERCPU_COUNT_BIAS >> 1:
            total += sum(self._percpu.values(head.percpu_count_ptr & ~PERCPU_REF_ATOMIC_DEAD)) - PERCPU_COUNT_BIAS
        return total & _MASK

    @property
    def initialised(self) -> Collection[int]:
        """The refs without ``exit`` so far."""
        return self._release.keys()

    def exit(self, ref: int) -> None:
        """``percpu_ref_exit``: free the memory of a ref. No effect on one that was never initialised."""
        if self._release.pop(ref, None) is None:
            return
        head = percpu_ref.view(self._machine, ref)
        self._percpu.free(head.percpu_count_ptr & ~PERCPU_REF_ATOMIC_DEAD)
        self._slab.free(head.data)

    def released(self, vcpu: Vcpu) -> None:
        """Host call ``percpu_ref_release``: guest code put the last reference of the ref in rdi."""
        self._release[vcpu.args(1)[0]]()

    def _switched(self, ref: int) -> None:
        """``percpu_ref_switch_to_atomic_rcu``: every CPU counts atomically now; add the per-CPU counts, drop the
        initial one.
        """
        head = percpu_ref.view(self._machine, ref)
        counted = sum(self._percpu.values(head.percpu_count_ptr & ~PERCPU_REF_ATOMIC_DEAD))
        address = int(head.data) + percpu_ref_data.offset("count")
        if self._machine.atomic_add_u64(address, counted - PERCPU_COUNT_BIAS - 1) == 0:
            self._release[ref]()
