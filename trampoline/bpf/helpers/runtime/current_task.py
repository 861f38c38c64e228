"""Helpers for the current task, CPU and time (kernel/bpf/helpers.c, kernel/trace/bpf_trace.c).

Time is virtual: ``Kernel.advance_clock``. Random numbers are the same in every run.
"""

from errno import EINVAL

from emu.kernel.routines.preempt import preempt_disable, preempt_enable
from emu.kernel.routines.rcu import rcu_read_lock, rcu_read_unlock
from emu.kernel.structs import task_struct
from trampoline.bpf.ctx_words import COOKIE_INDEX_SHIFT
from trampoline.bpf.helpers.runtime.definition import GuestHelper, Helper, HelperCall, python_helper

_CLOCK = "    mov rax, qword ptr gs:[percpu.sched_clock]\n    ret\n"
_CURRENT = "    mov rax, qword ptr gs:[percpu.current_task]\n    ret\n"
_CPU = "    mov eax, dword ptr gs:[percpu.cpu_number]\n    ret\n"
_PID_TGID = """
    mov rdx, qword ptr gs:[percpu.current_task]
    mov eax, dword ptr [rdx + task_struct.tgid]
    shl rax, 32
    mov edx, dword ptr [rdx + task_struct.pid]
    or rax, rdx
    ret
"""

# The count is the low byte of the word before the context.
_FUNC_ARG = f"""
    movzx eax, byte ptr [rdi - 8]
    mov esi, esi
    cmp rsi, rax
    jae get_func_arg_none
    mov rax, qword ptr [rdi + rsi*8]
    mov qword ptr [rdx], rax
    xor eax, eax
    ret
get_func_arg_none:
    mov rax, {-EINVAL}
    ret
"""

_FUNC_RET = """
    movzx eax, byte ptr [rdi - 8]
    mov rax, qword ptr [rdi + rax*8]
    mov qword ptr [rsi], rax
    xor eax, eax
    ret
"""

_SESSION_COOKIE = f"""
    mov rax, qword ptr [rdi - 8]
    shr rax, {COOKIE_INDEX_SHIFT}
    movzx eax, al
    neg rax
    lea rax, [rdi + rax*8]
    ret
"""

_SESSION_IS_RETURN = """
    mov rax, qword ptr [rdi - 8]
    shr rax, 63
    ret
"""

_LOCK = """
bpf_spin_lock_again:
    xor eax, eax
    mov ecx, 1
    lock cmpxchg dword ptr [rdi], ecx
    jne bpf_spin_lock_again
    xor eax, eax
    ret
"""


@python_helper("bpf_get_current_comm")
def get_current_comm(call: HelperCall, buffer: int, size: int) -> int:
    """The task's name, with a NUL, truncated to the buffer."""
    if not size & 0xFFFFFFFF:
        return -EINVAL
    comm = task_struct.view(call.kernel.machine, call.kernel.current(call.vcpu)).comm.split(b"\0", 1)[0]
    call.write(buffer, comm[: size - 1].ljust(size, b"\0"))
    return 0


@python_helper("bpf_user_rnd_u32")
def user_rnd_u32(call: HelperCall) -> int:
    """The next random number, from xorshift32."""
    state = call.runtime.random_state
    state ^= state << 13 & 0xFFFFFFFF
    state ^= state >> 17
    state ^= state << 5 & 0xFFFFFFFF
    call.runtime.random_state = state
    return state


HELPERS: tuple[Helper, ...] = (
    *(GuestHelper(f"bpf_ktime_get_{clock}ns", _CLOCK) for clock in ("", "boot_", "coarse_", "tai_")),
    GuestHelper("bpf_jiffies64", "    mov rax, jiffies\n    mov rax, qword ptr [rax]\n    ret\n"),
    *(GuestHelper(name, _CPU) for name in ("bpf_get_smp_processor_id", "bpf_get_raw_cpu_id")),
    *(GuestHelper(name, _CURRENT) for name in ("bpf_get_current_task", "bpf_get_current_task_btf")),
    GuestHelper("bpf_get_current_pid_tgid", _PID_TGID),
    *(
        GuestHelper(name, "    xor eax, eax\n    ret\n")
        for name in ("bpf_get_current_uid_gid", "bpf_get_numa_node_id")  # root, on the only node
    ),
    GuestHelper("bpf_get_func_ip_tracing", "    mov rax, qword ptr [rdi - 16]\n    ret\n"),
    GuestHelper("get_func_arg_cnt", "    movzx eax, byte ptr [rdi - 8]\n    ret\n"),
    GuestHelper("get_func_arg", _FUNC_ARG),
    GuestHelper("get_func_ret", _FUNC_RET),
    GuestHelper("bpf_session_cookie", _SESSION_COOKIE),
    GuestHelper("bpf_session_is_return", _SESSION_IS_RETURN),
    GuestHelper("bpf_spin_lock", _LOCK),
    GuestHelper("bpf_spin_unlock", "    mov dword ptr [rdi], 0\n    xor eax, eax\n    ret\n"),
    GuestHelper("bpf_rcu_read_lock", lambda config: f"{rcu_read_lock(config).text}\n    ret\n"),
    GuestHelper(
        "bpf_rcu_read_unlock",
        lambda config: (
            f"{(part := rcu_read_unlock(config, 'bpf_rcu_read_unlock')).text}\n    ret\n{part.cold}"
        ),
    ),
    GuestHelper("bpf_preempt_disable", lambda config: f"{preempt_disable(config).text}\n    ret\n"),
    GuestHelper(
        "bpf_preempt_enable",
        lambda config: f"{(part := preempt_enable(config, 'bpf_preempt_enable')).text}\n    ret\n{part.cold}",
    ),
    get_current_comm,
    user_rnd_u32,
)
