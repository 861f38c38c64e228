"""Balance of per-task, per-CPU and reference counters between calls: only sleeping tasks may hold any."""

from collections.abc import Iterable, Iterator

from emu.kernel.kernel import Kernel
from emu.kernel.mm.slab import POISON
from emu.kernel.structs import PERCPU, rq, srcu_ctr, task_struct
from emu.machine.task import TaskState

_NR_PINNED = PERCPU.offset("runqueues") + rq.offset("nr_pinned")
_NESTING, _PINNED = task_struct.offset("trc_reader_nesting"), task_struct.offset("migration_disabled")
_ENTERED, _LEFT = (
    [PERCPU.offset("rcu_tasks_trace_srcu_ctrs") + n * srcu_ctr.size + srcu_ctr.offset(field) for n in range(2)]
    for field in ("srcu_locks", "srcu_unlocks")
)
"""Per-CPU SRCU counters of RCU-tasks-trace readers (7.0)."""
_GIVEN_UP = int.from_bytes(bytes([POISON] * 4), "little")


def unbalanced(kernel: Kernel) -> Iterator[str]:
    """Imbalances while no task runs, each as a sentence."""
    machine = kernel.machine
    tasks = [task for task in machine.tasks if task.state is TaskState.SLEEPING]
    pinned = sum(any(machine.read(task.address + _PINNED, 2)) for task in tasks)
    counted = [_signed(value) for value in kernel.percpu.values(_NR_PINNED, 4)]
    if min(counted) < 0 or sum(counted) != pinned:
        yield f"nr_pinned of the CPUs is {counted} where {pinned} tasks are pinned"
    readers = 0
    if kernel.config.srcu_tasks_trace:
        readers = sum(any(machine.read(task.address + _NESTING, 4)) for task in tasks)
    entered, left = (sum(sum(kernel.percpu.values(at)) for at in counters) for counters in (_ENTERED, _LEFT))
    if entered - left != readers:
        yield f"{entered} sections of RCU-tasks-trace were entered and {left} left where {readers} tasks are in one"
    if not tasks:
        # A ref that is released counts 0 until it is given up.
        for ref in kernel.percpu_refs.initialised:
            count = kernel.percpu_refs.count(ref)
            if count > 1:
                yield f"the percpu_ref at {ref:#x} counts {count:#x} where no task is anywhere"


def written_since(kernel: Kernel, offsets: Iterable[int]) -> Iterator[str]:
    """Per-CPU counters at these offsets that were changed after they had been freed, each as a sentence."""
    for offset in offsets:
        values = kernel.percpu.values(offset, 4)
        if not kernel.percpu.name(offset) and any(value != _GIVEN_UP for value in values):
            yield f"the per-CPU counter at {offset:#x} was changed after it was freed: {[hex(one) for one in values]}"


def _signed(value: int) -> int:
    return value - (1 << 32) if value >> 31 else value
