"""The scheduler: there is one task a vCPU, and it never sleeps.

Contract: preemption points return at once, waking does nothing. Whoever would sleep (``schedule()`` and what waits by it)
ends the kernel with :class:`emu.vmlinux.errors.WouldSleep`: nothing could wake it. CPU hotplug states are taken without
being called. With several vCPUs the other ones' translations are thrown away where the kernel interrupts them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from emu.vmlinux.errors import WouldSleep
from emu.vmlinux.floor.table import Constant, Group, Host

if TYPE_CHECKING:
    from emu.vmlinux.unbooted_machine import UnbootedMachine
    from emu.vmlinux.vcpu import Vcpu

__all__ = ["GROUP", "OTHER_CPUS"]


def _sleep(_machine: UnbootedMachine, cpu: Vcpu, name: str) -> int:
    raise WouldSleep(f"{name}() would sleep", cpu.callers())


def _interrupt_others(machine: UnbootedMachine, cpu: Vcpu, _name: str) -> int:
    machine.interrupts_sent += 1
    for other in machine.vcpus:
        if other is not cpu:
            other.uc.ctl_flush_tb()
    return 0


GROUP = Group(
    "scheduler",
    (
        Host("schedule schedule_timeout io_schedule wait_for_completion wait_for_completion_timeout", _sleep),
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
