"""Kernel configurations: build options that affect the instructions of the kernel's routines.

The templates of ``emu.kernel.routines`` and ``trampoline.callees`` read a configuration. The code generator of a
release is a flavour and independent of it.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Config:
    """One build of a kernel."""

    name: str
    preempt_count: bool
    """CONFIG_PREEMPT_COUNT: preempt_disable() and rcu_read_lock() count; without it they are no instruction."""
    preemption: bool
    """CONFIG_PREEMPTION: preempt_enable() reschedules when the count falls to 0 and a reschedule is needed."""
    dont_migrate: bool
    """rcu_read_lock_dont_migrate() (6.18): with non-preemptible RCU readers it needs no migrate_disable()."""
    inline_migrate: bool
    """migrate_disable() and migrate_enable() are inline in the kernel proper (6.18), calls before."""
    inline_update_prog_stats: bool
    """update_prog_stats() is always inline (6.18); before, the compiler left the part after its test out of line."""
    srcu_tasks_trace: bool
    """RCU tasks trace readers are SRCU-fast readers (7.0); before, they counted in the task alone."""
    stack_protector: bool
    """CONFIG_STACKPROTECTOR_STRONG: functions that pass on the address of a local check a canary."""


VOLUNTARY = Config(
    "voluntary",
    preempt_count=False,
    preemption=False,
    dont_migrate=False,
    inline_migrate=False,
    inline_update_prog_stats=False,
    srcu_tasks_trace=False,
    stack_protector=True,
)
"""PREEMPT_VOLUNTARY of the 6.12 to 6.16 series: build P of the instruction anchors."""

LAZY = Config(
    "lazy",
    preempt_count=True,
    preemption=True,
    dont_migrate=True,
    inline_migrate=True,
    inline_update_prog_stats=True,
    srcu_tasks_trace=True,
    stack_protector=True,
)
"""PREEMPT_LAZY of 7.3, RCU readers not preemptible."""

NONE = Config(
    "none",
    preempt_count=False,
    preemption=False,
    dont_migrate=True,
    inline_migrate=True,
    inline_update_prog_stats=True,
    srcu_tasks_trace=True,
    stack_protector=True,
)
"""PREEMPT_NONE of the 7.x series without a preempt count: a non-preemptible read section is no instruction, and needs
no migrate_disable().
"""

CONFIGS = {config.name: config for config in (VOLUNTARY, LAZY, NONE)}
"""All configurations by name."""
