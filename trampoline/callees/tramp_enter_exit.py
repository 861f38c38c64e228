"""``__bpf_tramp_enter``, ``__bpf_tramp_exit``: hold a reference to an image while the original runs
(kernel/bpf/trampoline.c).
"""

from emu.kernel.config import Config
from emu.kernel.routines.percpu_ref import percpu_ref_get, percpu_ref_put
from emu.kernel.routines.routine import Routine, body, ret, symbols_of

_SYMBOLS = ("preempt_schedule", "__x86_return_thunk")


def routines(config: Config, *, return_thunk: bool) -> list[Routine]:
    """Both functions; their argument is the ``bpf_tramp_image``."""
    get = percpu_ref_get(config, "rdi", "bpf_tramp_image.pcref", "__bpf_tramp_enter")
    put = percpu_ref_put(config, "rdi", "bpf_tramp_image.pcref", "__bpf_tramp_exit")
    made = []
    for name, fragment in (("__bpf_tramp_enter", get), ("__bpf_tramp_exit", put)):
        text = body(fragment.text, ret(return_thunk), fragment.cold)
        made.append(Routine(name, text, symbols_of(text, _SYMBOLS)))
    return made
