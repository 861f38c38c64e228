"""BPF helpers that read the attach cookie from the run context (kernel/trace/bpf_trace.c, kernel/bpf/bpf_lsm.c)."""

from emu.kernel.config import Config
from emu.kernel.routines.routine import Routine, body, ret, symbols_of

_COOKIE = """
    mov rax, qword ptr gs:[percpu.current_task]
    mov rax, qword ptr [rax + task_struct.bpf_ctx]
    mov rax, qword ptr [rax + bpf_tramp_run_ctx.bpf_cookie]
"""


def routines(config: Config, *, return_thunk: bool) -> list[Routine]:
    """The helper for tracing programs and the one for LSM programs."""
    text = body(_COOKIE, ret(return_thunk))
    symbols = symbols_of(text, ("__x86_return_thunk",))
    return [Routine(name, text, symbols) for name in ("bpf_get_attach_cookie_tracing", "bpf_get_attach_cookie")]
