"""The scheduler: there is one task a vCPU, and it never sleeps.

Contract: preemption points return at once, waking does nothing. A task that would sleep (reaches
``__schedule()``) ends the kernel with :class:`emu.vmlinux.machine_errors.WouldSleep`: nothing could wake it. Kernel
threads are made (an empty ``task_struct``, noted by function) and never run. CPU hotplug states are taken without
being called. With several vCPUs the other ones' translations are thrown away where the kernel interrupts them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from emu.vmlinux.floor.memory import allocate
from emu.vmlinux.floor.table import Constant, Group, Host

if TYPE_CHECKING:
    from emu.vmlinux.machine import KernelMachine
    from emu.vmlinux.unbooted_machine import UnbootedMachine

__all__ = ["GROUP", "OTHER_CPUS"]


def _interrupt_others(machine: UnbootedMachine, cpu: KernelMachine, _name: str) -> int:
    machine.interrupts_sent += 1
    for other in machine.cpus:
        if other is not cpu:
            other.uc.ctl_flush_tb()
    return 0


def _create_thread(machine: UnbootedMachine, cpu: KernelMachine, _name: str) -> int:
    machine.threads.append(machine.names.describe(cpu.regs.rdi))
    return allocate(machine, machine.layout.size("task_struct"))


GROUP = Group(
    "scheduler",
    (
        Host("kthread_create_on_node __kthread_create_on_node", _create_thread),
        Constant(
            "preempt_schedule preempt_schedule_notrace preempt_schedule_irq msleep usleep_range_state yield "
            "wake_up_process wake_up_state __wake_up"
        ),
        Constant(
            "__cpuhp_state_add_instance __cpuhp_state_add_instance_cpuslocked cpuhp_setup_state __cpuhp_setup_state "
            "__cpuhp_setup_state_cpuslocked"
        ),
    ),
)
OTHER_CPUS = Group(
    "other CPUs",
    (
        Host(
            "on_each_cpu_cond_mask smp_call_function smp_call_function_many smp_call_function_many_cond",
            _interrupt_others,
        ),
    ),
    needs_several_cpus=True,
)
