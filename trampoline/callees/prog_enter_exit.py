"""Functions around a BPF program in a trampoline: ``__bpf_prog_enter*``, ``__bpf_prog_exit*``
(kernel/bpf/trampoline.c).

C prototypes::

    u64 __bpf_prog_enter*(struct bpf_prog *prog, struct bpf_tramp_run_ctx *run_ctx);
    void __bpf_prog_exit*(struct bpf_prog *prog, u64 start, struct bpf_tramp_run_ctx *run_ctx);

Enter returns 0: don't run the program; 1: run it; any other value: run it, the value is its start time in ns. Exit
follows every enter, also one that returned 0.
"""

from dataclasses import dataclass

from emu.kernel.config import Config
from emu.kernel.routines.migrate import migrate_disable, migrate_enable
from emu.kernel.routines.rcu import rcu_read_lock, rcu_read_lock_trace, rcu_read_unlock, rcu_read_unlock_trace
from emu.kernel.routines.routine import Fragment, JumpEntry, Routine, body, ret, symbols_of

BPF_STATS_ENABLED_KEY = "bpf_stats_enabled_key"
"""The static key of run-time statistics (``kernel.bpf_stats_enabled``)."""

NO_START_TIME = 1
"""Return value of enter while statistics are off (``BPF_PROG_NO_START_TIME``)."""

_SYMBOLS = (
    "migrate_disable", "migrate_enable", "___migrate_enable", "runqueues", "preempt_schedule", "sched_clock",
    "update_prog_stats", "rcu_read_unlock_trace_special", "rcu_tasks_trace_srcu_struct", "__x86_return_thunk",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Form:
    """One pair of enter and exit, by the programs that it is for."""

    suffix: str
    sleepable: bool = False
    recursion_guard: bool = True
    """``_recur``: prevents a program from running inside itself on one CPU."""
    timed: bool = True
    """Has statistics. An LSM cgroup shim has none; the programs that it calls have their own."""


FORMS = (
    Form("_recur"),
    Form("_sleepable_recur", sleepable=True),
    Form("", recursion_guard=False),
    Form("_sleepable", sleepable=True, recursion_guard=False),
    Form("_lsm_cgroup", recursion_guard=False, timed=False),
)
"""All pairs (``trampoline.c:bpf_trampoline_enter()``, ``bpf_trampoline_exit()``)."""


def _no_migrate(config: Config, form: Form) -> bool:
    """True for rcu_read_lock_dont_migrate(): a non-preemptible reader can't migrate. Tasks Trace RCU readers can: they
    sleep.
    """
    return config.dont_migrate and not form.sleepable


def _enter(config: Config, form: Form, return_thunk: bool) -> Routine:
    name = f"__bpf_prog_enter{form.suffix}"
    calls = not config.inline_migrate and not _no_migrate(config, form)
    # The arguments stay in their registers unless something is called.
    prog, run_ctx = ("rbp", "rbx") if calls and form.recursion_guard else ("rdi", "rbx" if calls else "rsi")
    save, restore = "", ""
    if calls and form.recursion_guard:
        save = """
    push rbp
    mov rbp, rdi                                   ; prog
    push rbx
    mov rbx, rsi                                   ; run_ctx
"""
        restore = "    pop rbx\n    pop rbp"
    elif calls:
        save = """
    push rbx
    mov rbx, rsi                                   ; run_ctx
"""
        restore = "    pop rbx"
    lock = rcu_read_lock_trace(config, name) if form.sleepable else rcu_read_lock(config)
    if _no_migrate(config, form):
        migrate = Fragment("")
    elif calls:
        migrate = Fragment("    call migrate_disable")
    else:
        migrate = migrate_disable(config, name)
    leave = body(restore, ret(return_thunk))
    text = body(
        save,
        lock.text,
        migrate.text,
        f"""
    mov rax, qword ptr gs:[percpu.current_task]    ; run_ctx->saved_run_ctx = bpf_set_run_ctx(run_ctx)
    mov rdx, qword ptr [rax + task_struct.bpf_ctx]
    mov qword ptr [{run_ctx} + bpf_tramp_run_ctx.saved_run_ctx], rdx
    mov qword ptr [rax + task_struct.bpf_ctx], {run_ctx}
""",
        f"""
    mov eax, 1
    mov rdx, qword ptr [{prog} + bpf_prog.active]
    xadd dword ptr gs:[rdx], eax                   ; this_cpu_inc_return(*prog->active)
    test eax, eax
    jne {name}_recursion
"""
        if form.recursion_guard
        else "",
        f"""
{name}_stats_site:
    nop5                                           ; jmp {name}_stats while statistics are on
"""
        if form.timed
        else "",
        f"    mov eax, {NO_START_TIME}",
        leave,
        f"""
{name}_stats:
    call sched_clock
    mov edx, {NO_START_TIME}                                     ; 0 would mean "don't run"
    test rax, rax
    cmove rax, rdx
{leave}
"""
        if form.timed
        else "",
        f"""
{name}_recursion:
    mov rax, qword ptr [{prog} + bpf_prog.stats]   ; bpf_prog_inc_misses_counter()
    add rax, qword ptr gs:[percpu.this_cpu_off]
    inc qword ptr [rax + bpf_prog_stats.misses]
    mov rax, qword ptr [{prog} + bpf_prog.aux]
    mov rax, qword ptr [rax + bpf_prog_aux.recursion_detected]
    test rax, rax
    je {name}_skip
{"" if prog == "rdi" else f"    mov rdi, {prog}"}
    call rax
{name}_skip:
    xor eax, eax                                   ; the trampoline skips the program
{leave}
"""
        if form.recursion_guard
        else "",
        migrate.cold,
        lock.cold,
    )
    entries = (JumpEntry(BPF_STATS_ENABLED_KEY, f"{name}_stats_site", f"{name}_stats"),) if form.timed else ()
    return Routine(name, text, symbols_of(text, _SYMBOLS), entries)


def add_stats(prog: str, start: str) -> str:
    """Code that adds to cnt and nsecs of the program on this CPU: the clock's value is in rax, ``start`` is neither rax
    nor rdx, which are clobbered.
    """
    return f"""
    mov rdx, qword ptr [{prog} + bpf_prog.stats]
    add rdx, qword ptr gs:[percpu.this_cpu_off]
    inc qword ptr [rdx + bpf_prog_stats.cnt]
    sub rax, {start}
    add qword ptr [rdx + bpf_prog_stats.nsecs], rax
"""


def _update_prog_stats(config: Config, form: Form, name: str) -> tuple[str, Fragment, str]:
    """Code of update_prog_stats(prog in rdi, start in rsi): saves of registers, the nop with its out-of-line code,
    restores.

    A start of 0 or 1 is no start time: the program did not run, or statistics were turned on after its entry.
    """
    if not form.timed:
        return "", Fragment(""), ""
    site = f"""
{name}_stats_site:
    nop5                                           ; jmp {name}_stats while statistics are on
{name}_stats_done:
"""
    test = f"""
{name}_stats:
    cmp rsi, {NO_START_TIME}
    jbe {name}_stats_done
"""
    again = f"    jmp {name}_stats_done"
    # Only the recursion guard needs prog after this.
    keep, back = ("    mov rbx, rdi", "    mov rdi, rbx") if form.recursion_guard else ("", "")
    if config.inline_update_prog_stats:
        cold = body(
            test,
            "    mov rbx, rdi\n    mov rbp, rsi\n    call sched_clock",
            add_stats("rbx", "rbp"),
            back,
            again,
        )
        return "    push rbp\n    push rbx", Fragment(site, cold), "    pop rbx\n    pop rbp"
    cold = body(test, keep, "    call update_prog_stats", back, again)
    if form.recursion_guard:
        return "    push rbx", Fragment(site, cold), "    pop rbx"
    return "", Fragment(site, cold), ""


def _exit(config: Config, form: Form, return_thunk: bool) -> Routine:
    name = f"__bpf_prog_exit{form.suffix}"
    save, stats, restore = _update_prog_stats(config, form, name)
    unlock = rcu_read_unlock_trace(config, name) if form.sleepable else rcu_read_unlock(config, name)
    if _no_migrate(config, form):
        migrate = Fragment("")
    elif config.inline_migrate:
        migrate = migrate_enable(config, name)
    else:
        migrate = Fragment("    call migrate_enable")
    text = body(
        save,
        """
    mov rdx, qword ptr [rdx + bpf_tramp_run_ctx.saved_run_ctx]
    mov rax, qword ptr gs:[percpu.current_task]    ; bpf_reset_run_ctx(run_ctx->saved_run_ctx)
    mov qword ptr [rax + task_struct.bpf_ctx], rdx
""",
        stats.text,
        """
    mov rax, qword ptr [rdi + bpf_prog.active]     ; also after an enter that returned 0
    dec dword ptr gs:[rax]
"""
        if form.recursion_guard
        else "",
        migrate.text,
        unlock.text,
        restore,
        ret(return_thunk),
        stats.cold,
        migrate.cold,
        unlock.cold,
    )
    entries = (JumpEntry(BPF_STATS_ENABLED_KEY, f"{name}_stats_site", f"{name}_stats"),) if form.timed else ()
    return Routine(name, text, symbols_of(text, _SYMBOLS), entries)


def routines(config: Config, *, return_thunk: bool) -> list[Routine]:
    """All pairs, and update_prog_stats() if the compiler did not inline it."""
    made = [make(config, form, return_thunk) for form in FORMS for make in (_enter, _exit)]
    if not config.inline_update_prog_stats:
        text = body(
            """
    push rbp
    mov rbp, rsi                                   ; start
    push rbx
    mov rbx, rdi                                   ; prog
    call sched_clock
""",
            add_stats("rbx", "rbp"),
            "    pop rbx\n    pop rbp",
            ret(return_thunk),
        )
        made.append(Routine("update_prog_stats", text, symbols_of(text, _SYMBOLS)))
    return made
