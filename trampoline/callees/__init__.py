"""Callees of trampolines and of their programs, as guest machine code."""

from emu.kernel.config import Config
from emu.kernel.routines.routine import Routine
from trampoline.callees import cookie, prog_enter_exit, tramp_enter_exit
from trampoline.callees.prog_enter_exit import BPF_STATS_ENABLED_KEY, NO_START_TIME

__all__ = ["BPF_STATS_ENABLED_KEY", "NOTRACE", "NO_START_TIME", "callee_texts", "callees"]


def callees(config: Config, *, return_thunk: bool = False) -> dict[str, Routine]:
    """Every callee of a configuration by name; they call ``emu.kernel.routines`` of the same configuration.

    ``return_thunk``: returns are ``jmp __x86_return_thunk``, as CONFIG_RETHUNK builds them.
    """
    made: dict[str, Routine] = {}
    for subject in (prog_enter_exit, tramp_enter_exit, cookie):
        made.update((routine.name, routine) for routine in subject.routines(config, return_thunk=return_thunk))
    return made


def callee_texts(config: Config, *, return_thunk: bool = False) -> dict[str, str]:
    """Assembly text of every callee, ``{name: text}``."""
    return {name: routine.text for name, routine in callees(config, return_thunk=return_thunk).items()}


NOTRACE = frozenset(
    {f"__bpf_prog_{way}{form.suffix}" for form in prog_enter_exit.FORMS for way in ("enter", "exit")}
    | {"update_prog_stats", "__bpf_tramp_enter", "__bpf_tramp_exit"}
)
"""Names of the callees that are never traced (notrace in the kernel)."""
