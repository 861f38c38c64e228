"""Work queues and irq_work: queued, and run by ``drain()`` in the order of queueing.

Contract: a work that is queued already stays where it is. Delays count for nothing. Flushing and cancelling return at
once and take nothing out of the queue: what is put off is run by the scenario alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from emu.vmlinux.floor.table import Constant, Group, Host

if TYPE_CHECKING:
    from emu.vmlinux.machine import KernelMachine
    from emu.vmlinux.unbooted_machine import UnbootedMachine

__all__ = ["GROUP"]

_WORKQUEUE = 0x1000
"""Return value of ``alloc_workqueue()``; nothing reads from it."""


def _queue_work(machine: UnbootedMachine, cpu: KernelMachine, _name: str) -> int:
    return int(machine.defer_once("work", cpu.regs.rdx))


def _queue_irq_work(machine: UnbootedMachine, cpu: KernelMachine, _name: str) -> int:
    return int(machine.defer_once("irq_work", cpu.regs.rdi))


GROUP = Group(
    "deferred work",
    (
        Host("queue_work_on queue_delayed_work_on mod_delayed_work_on queue_work_node", _queue_work),
        Host("irq_work_queue irq_work_queue_on", _queue_irq_work),
        Constant(
            "flush_work __flush_work cancel_work_sync cancel_delayed_work_sync cancel_delayed_work flush_delayed_work "
            "__flush_workqueue irq_work_sync"
        ),
        Constant("alloc_workqueue alloc_workqueue_noprof", _WORKQUEUE),
    ),
)
