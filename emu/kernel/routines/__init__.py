"""Routines of the kernel as guest machine code: migrate_disable, percpu_ref, RCU read sides, return thunks, ftrace.

Each module holds one subject: inline functions as fragments for other templates, functions as routines.
"""

from emu.kernel.config import Config
from emu.kernel.routines import ftrace, migrate, percpu_ref, preempt, rcu, thunks
from emu.kernel.routines.routine import JumpEntry, Routine

__all__ = ["BTF_ID_DENY", "GUEST_DATA", "NOTRACE", "JumpEntry", "Routine", "kernel_routines", "routine_texts"]

BTF_ID_DENY = (
    "migrate_disable",
    "migrate_enable",
    "___migrate_enable",
    "rcu_read_unlock_strict",
    "preempt_count_add",
    "preempt_count_sub",
    "__rcu_read_lock",
    "__rcu_read_unlock",
)
"""Functions that BPF refuses to trace with -EINVAL although ftrace could (``btf_id_deny``, kernel/bpf/verifier.c)."""

GUEST_DATA = {"rcu_tasks_trace_srcu_struct": "srcu_struct", **dict.fromkeys(ftrace.DATA, "pointer")}
"""Data that routines refer to by name, with its structure: allocated before their text is assembled, within reach of
text, zeroed.

``emu.kernel.structs.initialise_srcu`` fills in the SRCU domain.
"""


def kernel_routines(config: Config, *, return_thunk: bool = False) -> dict[str, Routine]:
    """All routines of a configuration by name, including host calls.

    Host calls get arguments by C's calling convention: ``preempt_schedule()``, which keeps all registers;
    ``rcu_read_unlock_trace_special(task)``; ``__set_cpus_allowed_ptr(task, affinity_context)``;
    ``percpu_ref_release(ref)``, for ``percpu_ref_data.release`` to point to.

    ``return_thunk``: returns are ``jmp __x86_return_thunk``, as CONFIG_RETHUNK builds them.
    """
    made: dict[str, Routine] = {}
    for subject in (migrate, preempt, rcu, percpu_ref, thunks, ftrace):
        made.update((routine.name, routine) for routine in subject.routines(config, return_thunk=return_thunk))
    return made


def routine_texts(config: Config, *, return_thunk: bool = False) -> dict[str, str]:
    """Assembly text of the routines, ``{name: text}``, without the host calls."""
    made = kernel_routines(config, return_thunk=return_thunk)
    return {name: routine.text for name, routine in made.items() if not routine.host_call}


NOTRACE = frozenset(
    {*thunks.RETURN_THUNKS, "srso_safe_ret", "__fentry__", "sched_clock", "preempt_schedule", *BTF_ID_DENY}
    | {*ftrace.NAMES}
)
"""Routines that are never traced: notrace in the kernel, or denied to BPF."""
