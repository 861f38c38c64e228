"""migrate_disable() and migrate_enable() (kernel/sched/core.c; inline in include/linux/sched.h since 6.18)."""

from emu.kernel.config import Config
from emu.kernel.routines.preempt import preempt_disable, preempt_enable
from emu.kernel.routines.routine import Fragment, Routine, body, ret, symbols_of

_SYMBOLS = ("runqueues", "preempt_schedule", "__set_cpus_allowed_ptr", "__stack_chk_fail", "___migrate_enable")

SCA_MIGRATE_ENABLE = 4
"""Flag of an affinity_context (kernel/sched/sched.h)."""


def migrate_disable(config: Config, label: str) -> Fragment:
    """The inline form; nested calls count in current. Clobbers rax and rdx."""
    disable, enable = preempt_disable(config), preempt_enable(config, f"{label}_md")
    return Fragment(
        body(
            f"""
    mov rdx, qword ptr gs:[percpu.current_task]    ; migrate_disable()
    movzx eax, word ptr [rdx + task_struct.migration_disabled]
    test ax, ax
    jne {label}_md_nested
""",
            disable.text,
            """
    mov rax, runqueues                             ; this_rq()->nr_pinned++
    add rax, qword ptr gs:[percpu.this_cpu_off]
    add dword ptr [rax + rq.nr_pinned], 1
    mov eax, 1
    mov word ptr [rdx + task_struct.migration_disabled], ax
""",
            enable.text,
            f"{label}_md_done:" if config.inline_migrate else "",
        ),
        body(
            f"""
{label}_md_nested:
    add eax, 1
    mov word ptr [rdx + task_struct.migration_disabled], ax
""",
            f"    jmp {label}_md_done" if config.inline_migrate else "",
            enable.cold,
        ),
    )


def migrate_enable(config: Config, label: str) -> Fragment:
    """The inline form of 6.18. Clobbers rax, rdx and, if the affinity must be restored, all caller-saved registers."""
    disable, enable = preempt_disable(config), preempt_enable(config, f"{label}_me")
    return Fragment(
        body(
            f"""
    mov rdx, qword ptr gs:[percpu.current_task]    ; migrate_enable()
    movzx eax, word ptr [rdx + task_struct.migration_disabled]
    cmp ax, 1
    ja {label}_me_nested
""",
            disable.text,
            f"""
    lea rax, [rdx + task_struct.cpus_mask]
    cmp rax, qword ptr [rdx + task_struct.cpus_ptr]
    jne {label}_me_affinity                        ; switched out meanwhile: migrate_disable_switch() pinned it
{label}_me_unpin:
    xor eax, eax
    mov word ptr [rdx + task_struct.migration_disabled], ax
    mov rax, runqueues                             ; this_rq()->nr_pinned--
    add rax, qword ptr gs:[percpu.this_cpu_off]
    sub dword ptr [rax + rq.nr_pinned], 1
""",
            enable.text,
            f"{label}_me_done:",
        ),
        body(
            f"""
{label}_me_nested:
    sub eax, 1
    mov word ptr [rdx + task_struct.migration_disabled], ax
    jmp {label}_me_done
{label}_me_affinity:
    call ___migrate_enable
    mov rdx, qword ptr gs:[percpu.current_task]
    jmp {label}_me_unpin
""",
            enable.cold,
        ),
    )


def _canary(config: Config) -> tuple[str, str, str]:
    """Stack protector of a frame of 0x20 bytes: at entry, before the return, out of line. Clobbers rax."""
    if not config.stack_protector:
        return "", "", ""
    return (
        """
    mov rax, qword ptr gs:[percpu.stack_canary]
    mov qword ptr [rsp + 0x18], rax
    xor eax, eax                                   ; no copy of the canary stays in a register
""",
        """
    mov rax, qword ptr [rsp + 0x18]
    sub rax, qword ptr gs:[percpu.stack_canary]
    jne {name}_smashed
""",
        """
{name}_smashed:
    call __stack_chk_fail
""",
    )


def _migrate_enable_call(config: Config, return_thunk: bool) -> str:
    """migrate_enable() up to 6.17: builds an affinity_context on the stack before testing whether it is needed."""
    enter, leave, smashed = (part.format(name="migrate_enable") for part in _canary(config))
    return body(
        """
    push rbx
    mov rbx, qword ptr gs:[percpu.current_task]
    lea rdx, [rbx + task_struct.cpus_mask]
    sub rsp, 0x20
""",
        enter,
        f"""
    movzx eax, word ptr [rbx + task_struct.migration_disabled]
    mov qword ptr [rsp], rdx                       ; affinity_context.new_mask
    mov qword ptr [rsp + 8], 0                     ; .user_mask
    mov qword ptr [rsp + 0x10], {SCA_MIGRATE_ENABLE}                  ; .flags
    cmp ax, 1
    ja migrate_enable_nested
    jne migrate_enable_warn
    cmp rdx, qword ptr [rbx + task_struct.cpus_ptr]
    jne migrate_enable_affinity                    ; switched out meanwhile: migrate_disable_switch() pinned it
migrate_enable_unpin:
    xor eax, eax
    mov word ptr [rbx + task_struct.migration_disabled], ax
    mov rax, runqueues                             ; this_rq()->nr_pinned--
    add rax, qword ptr gs:[percpu.this_cpu_off]
    sub dword ptr [rax + rq.nr_pinned], 1
migrate_enable_out:
""",
        leave,
        """
    add rsp, 0x20
    pop rbx
""",
        ret(return_thunk),
        """
migrate_enable_nested:
    sub eax, 1
    mov word ptr [rbx + task_struct.migration_disabled], ax
    jmp migrate_enable_out
migrate_enable_affinity:
    mov rsi, rsp
    mov rdi, rbx
    call __set_cpus_allowed_ptr
    jmp migrate_enable_unpin
migrate_enable_warn:
    ud2                                            ; WARN_ON_ONCE(!p->migration_disabled)
    jmp migrate_enable_out
""",
        smashed,
    )


def _restore_affinity(config: Config, return_thunk: bool) -> str:
    """``___migrate_enable()`` of 6.18: the rare part, out of line."""
    enter, leave, smashed = (part.format(name="___migrate_enable") for part in _canary(config))
    return body(
        """
    mov rdi, qword ptr gs:[percpu.current_task]
    sub rsp, 0x20
""",
        enter,
        f"""
    lea rdx, [rdi + task_struct.cpus_mask]
    mov qword ptr [rsp], rdx                       ; affinity_context.new_mask
    mov qword ptr [rsp + 8], 0                     ; .user_mask
    mov qword ptr [rsp + 0x10], {SCA_MIGRATE_ENABLE}                  ; .flags
    mov rsi, rsp
    call __set_cpus_allowed_ptr
""",
        leave,
        "    add rsp, 0x20",
        ret(return_thunk),
        smashed,
    )


def routines(config: Config, *, return_thunk: bool) -> list[Routine]:
    """migrate_disable(), migrate_enable() and their callees; since 6.18 the first two are for modules only."""
    texts = {}
    disable = migrate_disable(config, "migrate_disable")
    # The out-of-line nested path ends in its own return.
    texts["migrate_disable"] = body(
        disable.text,
        ret(return_thunk),
        disable.cold,
        "" if config.inline_migrate else ret(return_thunk),
    )
    if config.inline_migrate:
        enable = migrate_enable(config, "migrate_enable")
        texts["migrate_enable"] = body(enable.text, ret(return_thunk), enable.cold)
        texts["___migrate_enable"] = _restore_affinity(config, return_thunk)
    else:
        texts["migrate_enable"] = _migrate_enable_call(config, return_thunk)
    made = [Routine(name, text, symbols_of(text, _SYMBOLS)) for name, text in texts.items()]
    made.append(Routine("__set_cpus_allowed_ptr", host_call=True))
    if config.stack_protector:
        made.append(Routine("__stack_chk_fail", "    ud2\n"))
    return made
