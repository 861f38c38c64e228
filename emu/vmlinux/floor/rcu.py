"""Grace periods: callbacks of each flavour wait in one queue until the scenario lets grace periods end.

Contract: ``call_rcu*()``, ``call_srcu()`` and ``kvfree_call_rcu()`` queue; ``synchronize_*()`` and the barriers note
that a grace period was wanted and return: on one vCPU, between its calls, no reader can be inside. Readers themselves
(``__rcu_read_lock()``, SRCU's and percpu_ref's read sides) are the kernel's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from emu.vmlinux.floor.table import Group, Host

if TYPE_CHECKING:
    from emu.vmlinux.machine import KernelMachine
    from emu.vmlinux.unbooted_machine import UnbootedMachine

__all__ = ["GROUP"]

_PAGE = 4096
"""Below this a pointer is an offset (``__is_kvfree_rcu_offset()``)."""


def _call_rcu(machine: UnbootedMachine, cpu: KernelMachine, name: str) -> int:
    machine.defer(name, cpu.regs.rsi, cpu.regs.rdi)
    return 0


def _call_srcu(machine: UnbootedMachine, cpu: KernelMachine, name: str) -> int:
    machine.defer(name, cpu.regs.rdx, cpu.regs.rsi)
    return 0


def _kvfree_call_rcu(machine: UnbootedMachine, cpu: KernelMachine, name: str) -> int:
    """kvfree_call_rcu(head, ptr), before 6.3 (head, offset of head): the queued function is kfree() itself."""
    head, pointer = cpu.regs.rdi, cpu.regs.rsi
    machine.defer(name, machine.labels["release"], head - pointer if pointer < _PAGE else pointer)
    return 0


def _wait(machine: UnbootedMachine, _cpu: KernelMachine, name: str) -> int:
    machine.grace_periods.append(name)
    return 0


GROUP = Group(
    "RCU",
    (
        Host(
            "call_rcu call_rcu_hurry call_rcu_tasks call_rcu_tasks_trace call_rcu_tasks_rude call_rcu_tasks_generic",
            _call_rcu,
        ),
        Host("call_srcu", _call_srcu),
        Host("kvfree_call_rcu", _kvfree_call_rcu),
        Host(
            "synchronize_rcu synchronize_rcu_expedited synchronize_rcu_normal synchronize_rcu_tasks "
            "synchronize_rcu_tasks_rude synchronize_rcu_tasks_trace synchronize_rcu_tasks_generic synchronize_srcu "
            "synchronize_srcu_expedited synchronize_rcu_mult rcu_barrier rcu_barrier_tasks rcu_barrier_tasks_trace "
            "srcu_barrier __wait_rcu_gp",
            _wait,
        ),
    ),
)
