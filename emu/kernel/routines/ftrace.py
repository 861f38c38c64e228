"""ftrace's code: the stubs that sites call, the list function, the direct callers' callback, livepatch's.

arch/x86/kernel/ftrace_64.S as of 6.19, whose ftrace_regs_caller supports direct addresses that are reached by jmp, and
kernel/trace/ftrace.c. Callbacks get (ip, parent_ip, ops, fregs), with fregs a struct pt_regs on the stack.
"""

from emu.kernel.config import Config
from emu.kernel.routines.preempt import preempt_disable, preempt_enable
from emu.kernel.routines.routine import Fragment, Routine, body, ret, symbols_of
from emu.kernel.structs import pt_regs

NAMES = (
    "ftrace_stub",
    "ftrace_caller",
    "ftrace_regs_caller",
    "arch_ftrace_ops_list_func",
    "ftrace_ops_assist_func",
    "__ftrace_lookup_ip",
    "call_direct_funcs",
    "call_direct_funcs_by_ip",
    "klp_ftrace_handler",
)

TRACE_FTRACE_START, TRACE_LIST_START = 0, 5
"""First bit of a guard in ``task_struct.trace_recursion``: callbacks' own, and the list function's."""
_CTX_NORMAL, _CTX_TRANSITION = 3, 4
_SOFTIRQ, _HARDIRQ, _NMI = 0x00FF0100, 0x00FF0000, 0x00F00000
"""Bits of preempt_count for softirq, hardirq and NMI, each with those of contexts that interrupt it."""

GOLDEN_RATIO_64 = 0x61C8864680B583EB
"""Multiplier of hash_64() (include/linux/hash.h)."""
FTRACE_OPS_FL_STUB = 1 << 5

_FRAME = 0xA8
"""sizeof(struct pt_regs)."""
_SAVED = (("ax", "rax"), ("cx", "rcx"), ("dx", "rdx"), ("si", "rsi"), ("di", "rdi"), ("r8", "r8"), ("r9", "r9"))
_REST = (("r15", "r15"), ("r14", "r14"), ("r13", "r13"), ("r12", "r12"), ("r11", "r11"), ("r10", "r10"), ("bx", "rbx"))

_SYMBOLS = ("arch_ftrace_ops_list_func", "__ftrace_lookup_ip", "preempt_schedule")

DATA = ("ftrace_ops_list", "direct_functions", "function_trace_op")
"""Words that the routines read: the first ops, the hash of direct callers, the list function's ops argument."""


def _save(slots: tuple[tuple[str, str], ...]) -> str:
    return "\n".join(f"    mov qword ptr [rsp + pt_regs.{slot}], {register}" for slot, register in slots)


def _load(slots: tuple[tuple[str, str], ...]) -> str:
    return "\n".join(f"    mov {register}, qword ptr [rsp + pt_regs.{slot}]" for slot, register in slots)


def _save_mcount_regs(pushed: int) -> str:
    """Save caller-saved registers; rsi: parent_ip, rdi: the site. ``pushed``: bytes pushed before."""
    back = _FRAME + pushed
    return body(
        f"    sub rsp, {_FRAME:#x}                              ; struct pt_regs",
        _save(_SAVED),
        f"""
    mov qword ptr [rsp + pt_regs.orig_ax], 0       ; no direct caller so far
    mov rdx, rbp
    mov qword ptr [rsp + pt_regs.bp], rdx
    mov rsi, qword ptr [rsp + {back + 8:#x}]                 ; parent_ip
    mov rdi, qword ptr [rsp + {back:#x}]                 ; after the site
    mov qword ptr [rsp + pt_regs.ip], rdi
    sub rdi, 5                                     ; ip
    nop9                                           ; CALL_DEPTH_ACCOUNT
""",
    )


def _restore_mcount_regs(dropped: int) -> str:
    return body(
        "    mov rbp, qword ptr [rsp + pt_regs.bp]",
        _load(tuple(reversed(_SAVED))),
        f"    add rsp, {dropped:#x}",
    )


def caller(callback: str, ops: str, returns: str = "    ret") -> str:
    """The stub for callbacks that need only the argument registers (``ftrace_caller``), or a copy of it.

    ``callback``: the called symbol, ``ops``: name of the word that holds its third argument.
    """
    return body(
        _save_mcount_regs(0),
        f"""
    lea rcx, [rsp + {_FRAME + 8:#x}]
    mov qword ptr [rsp + pt_regs.sp], rcx
    mov rdx, qword ptr [rip + {ops}]
    lea rcx, [rsp]
    mov qword ptr [rsp + pt_regs.cs], 0            ; marks that not all registers are there
    nop9                                           ; CALL_DEPTH_ACCOUNT
    call {callback}
    mov rax, qword ptr [rsp + pt_regs.ip]          ; the callback may have redirected the function
    mov qword ptr [rsp + {_FRAME:#x}], rax
""",
        _restore_mcount_regs(_FRAME),
        returns,
    )


def regs_caller(callback: str, ops: str, returns: str = "    ret", *, direct: bool) -> str:
    """The stub with all registers (``ftrace_regs_caller``), or a copy of it for one ops.

    ``direct``: continues at the address that a callback left in orig_ax, as if the site had called it, or, with bit 0
    set, jumped to it. Copies don't: their ops is not a direct caller.
    """
    text = [
        "    pushf                                          ; before anything changes them",
        _save_mcount_regs(8),
        f"    mov rdx, qword ptr [rip + {ops}]",
        _save(_REST),
        f"""
    mov rcx, qword ptr [rsp + {_FRAME:#x}]
    mov qword ptr [rsp + pt_regs.flags], rcx
    mov rcx, 0x18                                  ; __KERNEL_DS
    mov qword ptr [rsp + pt_regs.ss], rcx
    mov rcx, 0x10                                  ; __KERNEL_CS
    mov qword ptr [rsp + pt_regs.cs], rcx
    lea rcx, [rsp + {_FRAME + 16:#x}]
    mov qword ptr [rsp + pt_regs.sp], rcx
    lea rcx, [rsp]
    nop9                                           ; CALL_DEPTH_ACCOUNT
    call {callback}
    mov rax, qword ptr [rsp + pt_regs.flags]
    mov qword ptr [rsp + {_FRAME:#x}], rax
    mov rax, qword ptr [rsp + pt_regs.ip]          ; livepatch redirects the function here
    mov qword ptr [rsp + {_FRAME + 8:#x}], rax
""",
        _load(tuple(slot for slot in _REST if slot[0] != "r11")),
        """
    mov rax, qword ptr [rsp + pt_regs.orig_ax]
    mov qword ptr [rsp + pt_regs.ss], rax
    test rax, rax
""",
        "    jne ftrace_regs_caller_direct" if direct else "    nop2",
        _restore_mcount_regs(_FRAME),
        "    popf",
        returns,
    ]
    if direct:
        text.append(
            f"""
    int3
ftrace_regs_caller_direct:
    test al, 1
    je ftrace_regs_caller_call
    and rax, 0xfffffffffffffffe                    ; reached by jmp: the site's return address goes
    mov qword ptr [rsp + {_FRAME + 8:#x}], rax
"""
        )
        text += [_restore_mcount_regs(_FRAME), "    popf", returns, "    int3"]
        text.append(
            f"""
ftrace_regs_caller_call:
    mov rdi, qword ptr [rsp + {_FRAME:#x}]                 ; the flags move down, the address takes their place
    mov qword ptr [rsp + pt_regs.ss], rdi
    mov qword ptr [rsp + {_FRAME:#x}], rax
"""
        )
        text += [
            _restore_mcount_regs(_FRAME - 8),
            """
    popf
    call ftrace_regs_caller_return                 ; a call for the return stack: the next ret belongs to it
    int3
ftrace_regs_caller_return:
    add rsp, 8
""",
            returns,
            "    int3",
        ]
    return body(*text)


def _recursion_enter(config: Config, start: int, label: str) -> Fragment:
    """``trace_test_and_set_recursion()``: sets the bit in ebp; jumps to ``{label}_recursion`` if both are set.

    One nesting within a context is allowed: an interrupt may occur before the context is counted. Clobbers rax,
    rdx.
    """
    return Fragment(
        body(
            f"""
    mov eax, dword ptr gs:[percpu.preempt_count]
    mov ebp, {start + _CTX_NORMAL}
    test eax, {_SOFTIRQ:#x}
    jne {label}_in_softirq
{label}_context:
    mov rdx, qword ptr gs:[percpu.current_task]
    mov rax, qword ptr [rdx + task_struct.trace_recursion]
    bts rax, rbp
    jb {label}_transition
{label}_taken:
    mov qword ptr [rdx + task_struct.trace_recursion], rax
""",
            preempt_disable(config).text,
        ),
        body(
            f"""
{label}_in_softirq:
    dec ebp
    test eax, {_HARDIRQ:#x}
    je {label}_context
    dec ebp
    test eax, {_NMI:#x}
    je {label}_context
    dec ebp
    jmp {label}_context
{label}_transition:
    mov ebp, {start + _CTX_TRANSITION}
    bts rax, rbp
    jae {label}_taken
    jmp {label}_recursion
"""
        ),
    )


def _recursion_leave(config: Config, label: str) -> Fragment:
    """``trace_clear_recursion()`` of the bit in ebp. Clobbers rax, rdx."""
    enable = preempt_enable(config, label)
    return Fragment(
        body(
            enable.text,
            """
    mov rdx, qword ptr gs:[percpu.current_task]
    mov rax, qword ptr [rdx + task_struct.trace_recursion]
    btr rax, rbp
    mov qword ptr [rdx + task_struct.trace_recursion], rax
""",
        ),
        enable.cold,
    )


def _list_func(config: Config, return_thunk: bool) -> str:
    """Calls every ops whose filter contains the site; an empty filter matches all sites."""
    enter = _recursion_enter(config, TRACE_LIST_START, "arch_ftrace_ops_list_func")
    leave = _recursion_leave(config, "arch_ftrace_ops_list_func")
    return body(
        """
    push rbp
    push r14
    push r13
    push r12
    push rbx
    mov r12, rdi
    mov r13, rsi
    mov r14, rcx
""",
        enter.text,
        f"""
    mov rbx, qword ptr [rip + ftrace_ops_list]
    test rbx, rbx
    je arch_ftrace_ops_list_func_done
arch_ftrace_ops_list_func_ops:
    test byte ptr [rbx + ftrace_ops.flags], {FTRACE_OPS_FL_STUB:#x}
    jne arch_ftrace_ops_list_func_next
    mov rax, qword ptr [rbx + ftrace_ops.func_hash]    ; ftrace_ops_test()
    mov rdi, qword ptr [rax + 8]
    cmp qword ptr [rdi + ftrace_hash.count], 0
    je arch_ftrace_ops_list_func_call
    mov rsi, r12
    call __ftrace_lookup_ip
    test rax, rax
    je arch_ftrace_ops_list_func_next
arch_ftrace_ops_list_func_call:
    mov rdi, r12
    mov rsi, r13
    mov rdx, rbx
    mov rcx, r14
    call qword ptr [rbx + ftrace_ops.func]
arch_ftrace_ops_list_func_next:
    mov rbx, qword ptr [rbx + ftrace_ops.next]
    test rbx, rbx
    jne arch_ftrace_ops_list_func_ops
arch_ftrace_ops_list_func_done:
""",
        leave.text,
        """
arch_ftrace_ops_list_func_recursion:
    pop rbx
    pop r12
    pop r13
    pop r14
    pop rbp
""",
        ret(return_thunk),
        enter.cold,
        leave.cold,
    )


def _assist_func(config: Config, return_thunk: bool) -> str:
    """Recursion guard for an ops with FTRACE_OPS_FL_RECURSION that is called without the list function."""
    enter = _recursion_enter(config, TRACE_LIST_START, "ftrace_ops_assist_func")
    leave = _recursion_leave(config, "ftrace_ops_assist_func")
    return body(
        """
    push rbp
    mov r8, rdx
""",
        enter.text,
        """
    mov rdx, r8
    call qword ptr [r8 + ftrace_ops.func]
""",
        leave.text,
        """
ftrace_ops_assist_func_recursion:
    pop rbp
""",
        ret(return_thunk),
        enter.cold,
        leave.cold,
    )


def _lookup_ip(return_thunk: bool) -> str:
    """Look up the ip in rsi in the ftrace_hash in rdi; returns its entry, or 0."""
    return body(
        f"""
    mov rcx, qword ptr [rdi + ftrace_hash.size_bits]
    xor eax, eax
    test rcx, rcx
    je __ftrace_lookup_ip_key
    movabs rax, {GOLDEN_RATIO_64:#x}         ; hash_long()
    imul rax, rsi
    neg ecx
    shr rax, cl
__ftrace_lookup_ip_key:
    mov rdx, qword ptr [rdi + ftrace_hash.buckets]
    mov rax, qword ptr [rdx + 8*rax]
__ftrace_lookup_ip_entry:
    test rax, rax
    je __ftrace_lookup_ip_out
    cmp qword ptr [rax + ftrace_func_entry.ip], rsi
    je __ftrace_lookup_ip_out
    mov rax, qword ptr [rax + ftrace_func_entry.next]
    jmp __ftrace_lookup_ip_entry
__ftrace_lookup_ip_out:
""",
        ret(return_thunk),
    )


def _call_direct(return_thunk: bool) -> str:
    """Store ``ops->direct_call`` for ftrace_regs_caller (``arch_ftrace_set_direct_caller``)."""
    return body(
        """
    mov rax, qword ptr [rdx + ftrace_ops.direct_call]
    test rax, rax
    je call_direct_funcs_out
    mov qword ptr [rcx + pt_regs.orig_ax], rax
call_direct_funcs_out:
""",
        ret(return_thunk),
    )


def _call_direct_by_ip(return_thunk: bool) -> str:
    """The same for an ops with one address for each site (CONFIG_HAVE_SINGLE_FTRACE_DIRECT_OPS)."""
    return body(
        """
    push rbx
    mov rbx, rcx
    mov rsi, rdi
    mov rdi, qword ptr [rip + direct_functions]
    call __ftrace_lookup_ip                        ; ftrace_find_rec_direct()
    test rax, rax
    je call_direct_funcs_by_ip_out
    mov rax, qword ptr [rax + ftrace_func_entry.direct]
    mov qword ptr [rbx + pt_regs.orig_ax], rax
call_direct_funcs_by_ip_out:
    pop rbx
""",
        ret(return_thunk),
    )


def _klp_handler(config: Config, return_thunk: bool) -> str:
    """Redirect to the replacement (kernel/livepatch/patch.c): ``ops->private`` is the klp_func on top."""
    enter = _recursion_enter(config, TRACE_FTRACE_START, "klp_ftrace_handler")
    leave = _recursion_leave(config, "klp_ftrace_handler")
    return body(
        """
    push rbp
    mov r8, rdx
""",
        enter.text,
        """
    mov rax, qword ptr [r8 + ftrace_ops.private]
    mov rax, qword ptr [rax + klp_func.new_func]
    mov qword ptr [rcx + pt_regs.ip], rax          ; ftrace_regs_set_instruction_pointer()
""",
        leave.text,
        """
klp_ftrace_handler_recursion:
    pop rbp
""",
        ret(return_thunk),
        enter.cold,
        leave.cold,
    )


def routines(config: Config, *, return_thunk: bool) -> list[Routine]:
    """The stubs and everything that they call, except callbacks."""
    back = ret(return_thunk)
    texts = (
        body(back),
        caller("arch_ftrace_ops_list_func", "function_trace_op", back),
        regs_caller("arch_ftrace_ops_list_func", "function_trace_op", back, direct=True),
        _list_func(config, return_thunk),
        _assist_func(config, return_thunk),
        _lookup_ip(return_thunk),
        _call_direct(return_thunk),
        _call_direct_by_ip(return_thunk),
        _klp_handler(config, return_thunk),
    )
    stacks = {"ftrace_caller": stack_words(saves_all=False), "ftrace_regs_caller": stack_words(saves_all=True)}
    return [
        Routine(name, text, symbols_of(text, _SYMBOLS), stack=stacks.get(name, {}))
        for name, text in zip(NAMES, texts, strict=True)
    ]


def stack_words(*, saves_all: bool) -> dict[int, str]:
    """Names of a stub's stack words, by the distance from the address after its return address."""
    flags = 8 if saves_all else 0
    words = {at.offset - 8 - flags - _FRAME: f"pt_regs.{name}" for name, at in pt_regs.fields.items()}
    return {**words, -16: "saved rflags"} if flags else words
