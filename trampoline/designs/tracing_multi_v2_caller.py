"""The global callers of the posted series' second version: what the sites of traced functions call.

A naked stub for each argument count saves the arguments on the stack, calls C that looks the function's metadata up and
runs its programs, and goes on into the function or returns to its caller. Written as gcc -O2 would compile it; for each
argument count the C is a function of its own, because the count is a constant of everything inlined there.

::

    rsp of the stub   +0  ctx[-2]: the function        +8  ctx[-1]: number of arguments
                     +16  args[0] to args[5], what programs get as context
                          args[nr_args]: the return value, for six arguments at +64
                     +72  return address into the function
"""

from emu.kernel.config import Config
from emu.kernel.routines.migrate import migrate_disable, migrate_enable
from emu.kernel.routines.percpu_ref import percpu_ref_get, percpu_ref_put
from emu.kernel.routines.rcu import rcu_read_lock, rcu_read_lock_trace, rcu_read_unlock, rcu_read_unlock_trace
from emu.kernel.routines.routine import Fragment, JumpEntry, Routine, body
from trampoline.bpf.structs import SLEEPABLE, bpf_tramp_run_ctx
from trampoline.callees.prog_enter_exit import BPF_STATS_ENABLED_KEY, NO_START_TIME, add_stats
from trampoline.image.generator import ARG_REGISTERS
from trampoline.kfunc_md.backend import MetadataBackend
from trampoline.kfunc_md.lookup import Entered, LookupRegisters

MAX_ARGS = 6
"""Arguments of a function that has a stub."""
_FRAME, _ARGS = 72, 16
_PUSHED = 6
"""Registers that the C pushes."""


def stub_name(nr_args: int) -> str:
    """The symbol of a stub; that of the C which it calls is the same with ``_run``."""
    return f"bpf_global_caller_{nr_args}"


def routines(config: Config, backend: MetadataBackend, *, clobbers: bool) -> list[Routine]:
    """Every stub and what it calls. ``clobbers``: the calls of programs declare which registers they change."""
    made = []
    for nr_args in range(MAX_ARGS + 1):
        made.append(Routine(stub_name(nr_args), _stub(nr_args), stack=_stub_words(nr_args)))
        made.append(_Run(config, backend, nr_args, clobbers).routine())
    return made


def _stub_words(nr_args: int) -> dict[int, str]:
    """What the words of a stub's frame are called, by the distance from the address behind its return address."""
    found = {0: "ip", 8: "nr_args", _ARGS + 8 * nr_args: "return value"}
    found |= {_ARGS + 8 * slot: f"arg{slot + 1}" for slot in range(nr_args)}
    return {at - _FRAME - 8: name for at, name in found.items()}


def _stub(nr_args: int) -> str:
    name, registers = stub_name(nr_args), ARG_REGISTERS[:nr_args]
    slots = [f"qword ptr [rsp + {_ARGS + 8 * slot:#x}]" for slot in range(nr_args + 1)]
    saved = "\n".join(f"    mov {slot}, {register}" for slot, register in zip(slots, registers, strict=False))
    restored = "\n".join(f"    mov {register}, {slot}" for slot, register in zip(slots, registers, strict=False))
    return body(
        f"""
.phase entry
    sub rsp, {_FRAME}
.phase save
{saved}
.phase entry
    lea rdi, [rsp + {_ARGS}]                       ; args
    lea rsi, [rsp + {_FRAME}]                      ; where the return address into the function is
    call {name}_run
.phase leave
    test eax, eax
    jne {name}_return
.phase restore
{restored}
.phase leave
    add rsp, {_FRAME}
    ret                                            ; on into the function
{name}_return:
    mov rax, {slots[-1]}                           ; what it returned, or what a program gave in its place
    add rsp, {_FRAME + 8}
    ret                                            ; to the function's caller
"""
    )


class _Run:
    """``bpf_global_caller_N_run(args, ip)``: 0 where the function is still to run, 1 where it is done.

    rbx: node of a list, rbp: its program, r12: args, r13: metadata, r14: ip, r15: whether the original is called here.
    """

    def __init__(self, config: Config, backend: MetadataBackend, nr_args: int, clobbers: bool) -> None:
        self._config, self._backend, self._nr_args, self._clobbers = config, backend, nr_args, clobbers
        self._name = f"{stub_name(nr_args)}_run"
        self._cold: list[str] = []
        self._entries: list[JumpEntry] = []
        # run_ctx, the start time where it must survive the program's call, the canary.
        self._canary = 0x18 if clobbers else 0x10
        self._start = "qword ptr [rsp + 0x10]" if clobbers else "r9"
        # Without clobbers the compiler keeps these over the call. Which registers it took is not known: here those that
        # a JITed program changes only through what it calls.
        self._current, self._active = ("rdx", "rcx") if clobbers else ("r10", "r11")

    def routine(self) -> Routine:
        """The whole function."""
        name, config = self._name, self._config
        result = f"qword ptr [r12 + {8 * self._nr_args:#x}]"
        lock, unlock = rcu_read_lock(config), self._fragment(rcu_read_unlock(config, f"{name}_rcu"), "lookup")
        get = percpu_ref_get(config, "r13", "kfunc_md.pcref", f"{name}_get")
        put = self._fragment(percpu_ref_put(config, "r13", "kfunc_md.pcref", f"{name}_put"), "origin")
        loads = "\n".join(
            f"    mov {register}, qword ptr [r12 + {8 * slot:#x}]"
            for slot, register in enumerate(ARG_REGISTERS[: self._nr_args])
        )
        look = self._backend.lookup(
            Entered("qword ptr [rsi]", is_return_address=True),
            label=f"{name}_look",
            missing=f"{name}_missing",
            registers=LookupRegisters(out="r13", key="rdi", scratch="rdx"),
        )
        self._cold.append(
            f"""
.phase origin
{name}_hold:
{get.text}
    jmp {name}_held
{get.cold}
{self._missing() if f"{name}_missing" in look else ""}
.phase leave
{name}_continue:
    xor eax, eax                                   ; the function is still to run
    jmp {name}_out
"""
        )
        text = body(
            self._prologue(),
            ".phase lookup",
            lock.text,
            look,
            f"""
.phase origin
    movzx r15d, byte ptr [r13 + kfunc_md.bpf_origin_call]
    test r15b, r15b
    jne {name}_hold
{name}_held:
.phase lookup
{unlock}
.phase save
    mov qword ptr [r12 - 0x10], rdi                ; ctx[-2]: bpf_get_func_ip()
    mov qword ptr [r12 - 8], {self._nr_args}       ; ctx[-1]: number of arguments
""",
            self._programs("fentry", 0),
            f"""
.phase origin
    test r15b, r15b
    je {name}_continue
.phase save
    mov {result}, 0                                ; a program that is skipped counts as 0
""",
            self._programs("fmod_ret", 2, result),
            f"""
.phase origin
{loads}
    mov rax, qword ptr [r14]                       ; behind the site, or where livepatch wants the original to go on
    call rax
    mov {result}, rax
{name}_fexit:
""",
            self._programs("fexit", 1),
            ".phase origin",
            put,
            ".phase leave",
            "    mov eax, 1                                     ; the function is done",
            f"{name}_out:",
            self._epilogue(),
        )
        return Routine(name, body(text, *self._cold), jump_entries=tuple(self._entries), stack=self._words())

    def _words(self) -> dict[int, str]:
        """What the words of the frame are called below the registers that are pushed."""
        found = {
            bpf_tramp_run_ctx.offset("bpf_cookie"): "run_ctx.cookie",
            bpf_tramp_run_ctx.offset("saved_run_ctx"): "run_ctx.saved_run_ctx",
        }
        if self._clobbers:
            found[0x10] = "start time"
        if self._config.stack_protector:
            found[self._canary] = "stack canary"
        size = self._canary + 8 + 8 * (_PUSHED + 1)
        return {at - size: name for at, name in found.items()}

    def _fragment(self, fragment: Fragment, phase: str) -> str:
        """Its instructions in line; those out of line go behind the function."""
        if fragment.cold:
            self._cold.append(f".phase {phase}\n{fragment.cold}")
        return fragment.text

    def _prologue(self) -> str:
        canary = f"""
    mov rax, qword ptr gs:[percpu.stack_canary]
    mov qword ptr [rsp + {self._canary:#x}], rax
    xor eax, eax                                   ; no copy of the canary stays in a register
"""
        return f"""
.phase entry
    push r15
    push r14
    push r13
    push r12
    push rbp
    push rbx
    sub rsp, {self._canary + 8:#x}
{canary if self._config.stack_protector else ""}
    mov r12, rdi
    mov r14, rsi
"""

    def _epilogue(self) -> str:
        smashed = f"{self._name}_smashed"
        check = f"""
    mov rdx, qword ptr [rsp + {self._canary:#x}]
    sub rdx, qword ptr gs:[percpu.stack_canary]
    jne {smashed}
"""
        if self._config.stack_protector:
            self._cold.append(f"{smashed}:\n    call __stack_chk_fail")
        return f"""
{check if self._config.stack_protector else ""}
    add rsp, {self._canary + 8:#x}
    pop rbx
    pop rbp
    pop r12
    pop r13
    pop r14
    pop r15
    ret
"""

    def _missing(self) -> str:
        """Without metadata the function runs as if nothing were attached to it."""
        unlock = self._fragment(rcu_read_unlock(self._config, f"{self._name}_none"), "lookup")
        return f".phase lookup\n{self._name}_missing:\n{unlock}"

    # A list of programs ---------------------------------------------------------------------------------------------

    def _programs(self, kind: str, place: int, result: str = "") -> str:
        """Run a list; with ``result`` each program's goes there, and one that is not 0 skips the original."""
        label = f"{self._name}_{kind}"
        stop = f"    cmp {result}, 0\n    jne {self._name}_fexit" if result else ""
        return body(
            f"""
.phase enter
    mov rbx, qword ptr [r13 + kfunc_md.bpf_progs + {8 * place}]
    test rbx, rbx
    je {label}_none
{label}_next:
    mov rbp, qword ptr [rbx + kfunc_md_tramp_prog.prog]
    mov rax, qword ptr [rbx + kfunc_md_tramp_prog.cookie]
    mov qword ptr [rsp + bpf_tramp_run_ctx.bpf_cookie], rax
""",
            self._enter(label),
            f"""
.phase program
    mov rax, qword ptr [rbp + bpf_prog.bpf_func]
    mov rdi, r12                                   ; the context
    call rax
{f"    mov {result}, rax" if result else ""}
""",
            self._exit(label),
            stop,
            f"""
    mov rbx, qword ptr [rbx + kfunc_md_tramp_prog.next]
    test rbx, rbx
    jne {label}_next
{label}_none:
""",
        )

    def _enter(self, label: str) -> str:
        """``__bpf_prog_enter_recur`` or ``__bpf_prog_enter_sleepable_recur``, inlined."""
        config, current, active = self._config, self._current, self._active
        trace = rcu_read_lock_trace(config, f"{label}_enter")
        migrate = self._migrate(disable=True, label=f"{label}_enter")
        # rcu_read_lock_dont_migrate(): a non-preemptible reader can't migrate. Trace readers can: they sleep.
        common, sleepers = ("", migrate.text) if config.dont_migrate else (migrate.text, "")
        site = f"{label}_enter_stats_site"
        self._entries.append(JumpEntry(BPF_STATS_ENABLED_KEY, site, f"{label}_enter_stats"))
        self._cold.append(
            body(
                f"""
.phase enter
{label}_sleepable:
{trace.text}
{sleepers}
    jmp {label}_locked
{label}_enter_stats:
    call sched_clock
    mov edx, {NO_START_TIME}                                     ; 0 would mean "don't run"
    test rax, rax
    cmove rax, rdx
    mov {self._start}, rax
{self._held_registers()}
    jmp {label}_run
{label}_recursion:
    mov rax, qword ptr [rbp + bpf_prog.stats]      ; bpf_prog_inc_misses_counter()
    add rax, qword ptr gs:[percpu.this_cpu_off]
    inc qword ptr [rax + bpf_prog_stats.misses]
    mov rax, qword ptr [rbp + bpf_prog.aux]
    mov rax, qword ptr [rax + bpf_prog_aux.recursion_detected]
    test rax, rax
    je {label}_skip
    mov rdi, rbp
    call rax
{label}_skip:
{self._begun(0)}
{self._held_registers()}
    jmp {label}_exit
""",
                trace.cold,
                migrate.cold,
            )
        )
        return body(
            f"""
    test byte ptr [rbp + bpf_prog.sleepable], {SLEEPABLE:#x}
    jne {label}_sleepable
""",
            rcu_read_lock(config).text,
            f"{label}_locked:",
            common,
            f"""
    mov {current}, qword ptr gs:[percpu.current_task] ; run_ctx.saved_run_ctx = bpf_set_run_ctx(&run_ctx)
    mov rax, qword ptr [{current} + task_struct.bpf_ctx]
    mov qword ptr [rsp + bpf_tramp_run_ctx.saved_run_ctx], rax
    mov qword ptr [{current} + task_struct.bpf_ctx], rsp
    mov {active}, qword ptr [rbp + bpf_prog.active]
    mov eax, 1
    xadd dword ptr gs:[{active}], eax                   ; this_cpu_inc_return(*prog->active)
    test eax, eax
    jne {label}_recursion
{site}:
    nop5                                           ; jmp {label}_enter_stats while statistics are on
{self._begun(NO_START_TIME)}
{label}_run:
""",
        )

    def _begun(self, value: int) -> str:
        if self._clobbers:
            return f"    mov {self._start}, {value}"
        return f"    mov r9d, {value}" if value else "    xor r9d, r9d"

    def _held_registers(self) -> str:
        """What the posted series' compiler keeps in caller-saved registers over the program's call."""
        if self._clobbers:
            return ""
        return f"""
    mov {self._current}, qword ptr gs:[percpu.current_task]
    mov {self._active}, qword ptr [rbp + bpf_prog.active]
"""

    def _exit(self, label: str) -> str:
        """``__bpf_prog_exit_recur`` or ``__bpf_prog_exit_sleepable_recur``, inlined."""
        config, start, current, active = self._config, self._start, self._current, self._active
        trace = rcu_read_unlock_trace(config, f"{label}_exit")
        migrate = self._migrate(disable=False, label=f"{label}_exit")
        common, sleepers = ("", migrate.text) if config.dont_migrate else (migrate.text, "")
        unlock = self._fragment(rcu_read_unlock(config, f"{label}_exit"), "exit")
        site = f"{label}_exit_stats_site"
        self._entries.append(JumpEntry(BPF_STATS_ENABLED_KEY, site, f"{label}_exit_stats"))
        self._cold.append(
            body(
                f"""
.phase exit
{label}_exit_stats:
    cmp {start}, {NO_START_TIME}
    jbe {label}_counted                            ; it did not run, or statistics came on after its entry
    call sched_clock
""",
                add_stats("rbp", start),
                f"""
{self._held_registers()}
    jmp {label}_counted
{label}_wake:
{sleepers}
{trace.text}
    jmp {label}_unlocked
""",
                trace.cold,
                migrate.cold,
            )
        )
        return body(
            f"""
.phase exit
{label}_exit:
{site}:
    nop5                                           ; jmp {label}_exit_stats while statistics are on
{label}_counted:
    mov rax, qword ptr [rsp + bpf_tramp_run_ctx.saved_run_ctx]
""",
            self._reloaded(current, "gs:[percpu.current_task]"),
            f"    mov qword ptr [{current} + task_struct.bpf_ctx], rax ; bpf_reset_run_ctx(run_ctx.saved_run_ctx)",
            self._reloaded(active, "[rbp + bpf_prog.active]"),
            f"    dec dword ptr gs:[{active}]                    ; also where the guard refused the program",
            common,
            f"""
    test byte ptr [rbp + bpf_prog.sleepable], {SLEEPABLE:#x}
    jne {label}_wake
""",
            unlock,
            f"{label}_unlocked:",
        )

    def _reloaded(self, register: str, where: str) -> str:
        return f"    mov {register}, qword ptr {where}" if self._clobbers else ""

    def _migrate(self, *, disable: bool, label: str) -> Fragment:
        if not self._config.inline_migrate:
            return Fragment("    call migrate_disable" if disable else "    call migrate_enable")
        return (migrate_disable if disable else migrate_enable)(self._config, label)
