"""Return thunks, the ftrace entry and the clock (arch/x86/lib/retpoline.S, arch/x86/kernel/ftrace_64.S, tsc.c)."""

from emu.kernel.config import Config
from emu.kernel.routines.routine import Routine, body, ret

RSB_ENTRIES = 16
"""Calls that fill a return stack buffer (``RSB_RET_STUFF_LOOPS``)."""


def _call_depth_return_thunk() -> str:
    """Returns if the CPU's return stack certainly holds the address; else fills it with harmless entries first."""
    stuffing = "".join(
        f"""
    call call_depth_return_thunk_{entry}
    int3
call_depth_return_thunk_{entry}:"""
        for entry in range(RSB_ENTRIES)
    )
    return body(
        """
    shl qword ptr gs:[percpu.call_depth], 5        ; each call shifted a bit in; 0: as many returns as calls
    je call_depth_return_thunk_stuff
    ret
    int3
call_depth_return_thunk_stuff:
""",
        stuffing,
        f"""
    add rsp, {8 * RSB_ENTRIES}
    mov qword ptr gs:[percpu.call_depth], -1       ; CREDIT_CALL_DEPTH
    ret
    int3
""",
    )


_THUNKS = {
    # As built; the kernel patches every jmp to it at boot.
    "__x86_return_thunk": "    ret\n    int3\n",
    # Placed in the upper half of a cache line.
    "its_return_thunk": "    ret\n    int3\n",
    # The int3 after ret is the tail of a test instruction that trained the branch predictor (zen_untrain_ret).
    "retbleed_return_thunk": "    ret\n    int3\n    lfence\n    jmp retbleed_return_thunk\n    int3\n",
    "srso_safe_ret": "    lea rsp, [rsp + 8]    ; drops the call's return address\n    ret\n    int3\n",
    "srso_return_thunk": "    call srso_safe_ret\n    ud2\n",
    "call_depth_return_thunk": _call_depth_return_thunk(),
}

RETURN_THUNKS = tuple(name for name in _THUNKS if name.endswith("_return_thunk"))
"""Functions that may be the kernel's return thunk."""


def routines(config: Config, *, return_thunk: bool) -> list[Routine]:
    """All return thunks, ``__fentry__`` (the unpatched site's callee) and ``sched_clock``."""
    calls = {"retbleed_return_thunk": ("retbleed_return_thunk",), "srso_return_thunk": ("srso_safe_ret",)}
    clock = body(
        # Virtual time: the kernel would read the time stamp counter, which is not deterministic here.
        "    mov rax, qword ptr gs:[percpu.sched_clock]",
        ret(return_thunk),
    )
    return [
        *(Routine(name, text, calls.get(name, ())) for name, text in _THUNKS.items()),
        Routine("__fentry__", body(ret(return_thunk))),
        Routine("sched_clock", clock),
    ]
