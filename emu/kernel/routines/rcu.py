"""RCU read sides as instructions (include/linux/rcupdate.h, rcupdate_trace.h).

Both configurations have non-preemptible RCU: rcu_read_lock() is preempt_disable().
"""

from emu.kernel.config import Config
from emu.kernel.routines.preempt import preempt_disable, preempt_enable
from emu.kernel.routines.routine import Fragment, Routine


def rcu_read_lock(config: Config) -> Fragment:
    """``__rcu_read_lock()`` without CONFIG_PREEMPT_RCU."""
    return preempt_disable(config)


def rcu_read_unlock(config: Config, label: str) -> Fragment:
    """``__rcu_read_unlock()`` without CONFIG_PREEMPT_RCU."""
    return preempt_enable(config, label)


def rcu_read_lock_trace(config: Config, label: str) -> Fragment:
    """Counts in current; the outermost reader of 7.0 takes an SRCU counter too. Clobbers rax, rcx, rdx."""
    if not config.srcu_tasks_trace:
        return Fragment(
            """
    mov rax, qword ptr gs:[percpu.current_task]    ; rcu_read_lock_trace()
    mov edx, dword ptr [rax + task_struct.trc_reader_nesting]
    add edx, 1
    mov dword ptr [rax + task_struct.trc_reader_nesting], edx
"""
        )
    return Fragment(
        f"""
    mov rax, qword ptr gs:[percpu.current_task]    ; rcu_read_lock_trace()
    mov edx, dword ptr [rax + task_struct.trc_reader_nesting]
    lea ecx, [rdx + 1]
    mov dword ptr [rax + task_struct.trc_reader_nesting], ecx
    test edx, edx
    jne {label}_trace_nested
    mov rcx, rcu_tasks_trace_srcu_struct
    mov rdx, qword ptr [rcx + srcu_struct.srcu_ctrp]
    inc qword ptr gs:[rdx + srcu_ctr.srcu_locks]   ; __srcu_read_lock_fast()
    mov qword ptr [rax + task_struct.trc_reader_scp], rdx
{label}_trace_nested:
"""
    )


def rcu_read_unlock_trace(config: Config, label: str) -> Fragment:
    """Counterpart of ``rcu_read_lock_trace``. Clobbers rax, rcx, rdx and rdi."""
    if not config.srcu_tasks_trace:
        return Fragment(
            f"""
    mov rdi, qword ptr gs:[percpu.current_task]    ; rcu_read_unlock_trace()
    mov eax, dword ptr [rdi + task_struct.trc_reader_nesting]
    lea edx, [rax + 0x7fffffff]                    ; INT_MIN + nesting - 1: no .need_qs from an interrupt
    mov dword ptr [rdi + task_struct.trc_reader_nesting], edx
    lea edx, [rax - 1]
    mov ecx, dword ptr [rdi + task_struct.trc_reader_special]
    cmp eax, 1
    jne {label}_trace_count
    test ecx, ecx
    jne {label}_trace_special
{label}_trace_count:
    mov dword ptr [rdi + task_struct.trc_reader_nesting], edx
{label}_trace_done:
""",
            f"""
{label}_trace_special:
    call rcu_read_unlock_trace_special             ; a grace period waits for this reader
    jmp {label}_trace_done
""",
        )
    return Fragment(
        f"""
    mov rax, qword ptr gs:[percpu.current_task]    ; rcu_read_unlock_trace()
    mov rdx, qword ptr [rax + task_struct.trc_reader_scp]
    sub dword ptr [rax + task_struct.trc_reader_nesting], 1
    jne {label}_trace_nested
    inc qword ptr gs:[rdx + srcu_ctr.srcu_unlocks] ; __srcu_read_unlock_fast()
{label}_trace_nested:
"""
    )


def routines(config: Config, *, return_thunk: bool) -> list[Routine]:
    """Callees of the read sides: a host call."""
    return [] if config.srcu_tasks_trace else [Routine("rcu_read_unlock_trace_special", host_call=True)]
