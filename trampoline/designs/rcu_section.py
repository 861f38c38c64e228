"""Code around programs in a caller: the RCU read-side section, and migrate_disable() if a reader could migrate.

The work of ``trampoline.c:__bpf_prog_enter_recur()`` and its like, inline, and once for consecutive programs of one
kind.
"""

from collections.abc import Sequence

from emu.kernel.config import Config
from emu.kernel.routines.preempt import preempt_disable, preempt_enable
from emu.kernel.routines.rcu import rcu_read_lock, rcu_read_lock_trace, rcu_read_unlock, rcu_read_unlock_trace
from emu.kernel.routines.routine import Fragment, body

CURRENT = "r11"
"""Register of ``current``: not an argument register, valid until the next call."""
LOAD_CURRENT = f"mov {CURRENT}, gs:[percpu.current_task]"

_MIGRATION_DISABLED = f"word ptr [{CURRENT} + task_struct.migration_disabled]"


def _migrates(config: Config, sleepable: bool) -> bool:
    """True if a reader could migrate; a non-preemptible reader can't (rcu_read_lock_dont_migrate())."""
    return sleepable or not config.dont_migrate


def enter_section(config: Config, label: str, *, sleepable: bool, loaded: bool) -> Fragment:
    """Code that enters the read section. ``loaded``: CURRENT holds current. Clobbers it and, if ``sleepable``, rax,
    rcx, rdx.
    """
    lock = rcu_read_lock_trace(config, label) if sleepable else rcu_read_lock(config)
    if not _migrates(config, sleepable):
        return lock
    disable, enable = preempt_disable(config), preempt_enable(config, f"{label}_pin")
    migrate = body(
        "" if loaded else LOAD_CURRENT,
        f"""
cmp {_MIGRATION_DISABLED}, 0 ; migrate_disable()
jne {label}_nested
""",
        disable.text,
        f"""
mov {_MIGRATION_DISABLED}, 1
inc dword ptr gs:[runqueues + rq.nr_pinned]
""",
        enable.text,
        f"{label}_pinned:",
    )
    nested = body(
        f"""
{label}_nested:
.phase enter
inc {_MIGRATION_DISABLED}
jmp {label}_pinned
""",
        enable.cold,
    )
    return Fragment(body(migrate, lock.text) if sleepable else body(lock.text, migrate), body(nested, lock.cold))


def leave_section(config: Config, label: str, *, sleepable: bool, account: Sequence[str]) -> Fragment:
    """Code that leaves the read section. ``account``: lines before a call. Clobbers rax, rcx, rdx, rdi and CURRENT."""
    label_out = f"{label}_out"
    unlock = rcu_read_unlock_trace(config, label_out) if sleepable else rcu_read_unlock(config, label_out)
    if not _migrates(config, sleepable):
        return unlock
    disable, enable = preempt_disable(config), preempt_enable(config, f"{label}_unpin")
    migrate = body(
        LOAD_CURRENT,
        f"""
cmp {_MIGRATION_DISABLED}, 1 ; migrate_enable()
ja {label}_unnest
""",
        disable.text,
        f"""
lea rax, [{CURRENT} + task_struct.cpus_mask]
cmp rax, [{CURRENT} + task_struct.cpus_ptr]
jne {label}_affinity
{label}_unpin:
mov {_MIGRATION_DISABLED}, 0
dec dword ptr gs:[runqueues + rq.nr_pinned]
""",
        enable.text,
        f"{label}_unpinned:",
    )
    if config.inline_migrate:
        restore = ["call ___migrate_enable", LOAD_CURRENT, f"jmp {label}_unpin"]
    else:
        # Up to 6.17 the rare part of migrate_enable() has no symbol of its own: the whole function is called.
        restore = ["call migrate_enable", f"jmp {label}_unpinned"]
    rare = body(
        f"""
{label}_unnest:
.phase exit
dec {_MIGRATION_DISABLED}
jmp {label}_unpinned
{label}_affinity: ; switched out meanwhile: migrate_disable_switch() pinned it
""",
        "\n".join([*account, *restore]),
        enable.cold,
    )
    return Fragment(body(unlock.text, migrate) if sleepable else body(migrate, unlock.text), body(rare, unlock.cold))
