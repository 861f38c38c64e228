"""preempt_disable() and preempt_enable() (include/linux/preempt.h)."""

from emu.kernel.config import Config
from emu.kernel.routines.routine import Fragment, Routine

_NOTHING = Fragment("")


def preempt_disable(config: Config) -> Fragment:
    """preempt_disable(); without CONFIG_PREEMPT_COUNT only a compiler barrier."""
    if not config.preempt_count:
        return _NOTHING
    return Fragment("    inc dword ptr gs:[percpu.preempt_count]    ; preempt_disable()")


def preempt_enable(config: Config, label: str) -> Fragment:
    """preempt_enable(). ``label``: prefix for its labels."""
    if not config.preempt_count:
        return _NOTHING
    count = "    dec dword ptr gs:[percpu.preempt_count]    ; preempt_enable()"
    if not config.preemption:
        return Fragment(count)
    return Fragment(
        f"""
{count}
    je {label}_resched                             ; 0: preemptible, and PREEMPT_NEED_RESCHED (inverted) asks for it
{label}_resched_done:
""",
        f"""
{label}_resched:
    call preempt_schedule                          ; its thunk keeps all registers
    jmp {label}_resched_done
""",
    )


def routines(config: Config, *, return_thunk: bool) -> list[Routine]:
    """The scheduler, a host call."""
    return [Routine("preempt_schedule", host_call=True)] if config.preemption else []
