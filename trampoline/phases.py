"""To which phase of a trampoline the work of its callees belongs."""

from collections.abc import Mapping
from dataclasses import replace

from asm import Phase
from emu.kernel.routines import Routine

_PHASES = {
    "__bpf_prog_enter": Phase.ENTER,
    "__bpf_prog_exit": Phase.EXIT,
    "__bpf_tramp_enter": Phase.ORIGIN,
    "__bpf_tramp_exit": Phase.ORIGIN,
    "update_prog_stats": Phase.EXIT,
    "migrate_disable": Phase.ENTER,
    "migrate_enable": Phase.EXIT,
}
"""By the beginning of a routine's name."""


def with_phases(routines: Mapping[str, Routine]) -> dict[str, Routine]:
    """The routines, each with the phase that its instructions count for."""
    marked = {}
    for name, routine in routines.items():
        phase = next((phase for prefix, phase in _PHASES.items() if name.startswith(prefix)), None)
        marked[name] = replace(routine, text=f".phase {phase}\n{routine.text}") if phase else routine
    return marked
