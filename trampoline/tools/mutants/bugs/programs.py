"""Bugs around programs: entry, exit, recursion, lifetime."""

from collections.abc import Callable, Iterator
from typing import Any

from emu.kernel.rcu import RcuFlavour
from emu.kernel.routines.routine import Routine
from trampoline.bpf.prog import BpfProg, BpfPrograms
from trampoline.bpf.uapi import AttachType
from trampoline.releases.kernel_release import KernelRelease
from trampoline.tools.mutants.mutant import Mutant
from trampoline.tools.mutants.patch import replace, wrap


def _checks_first(enter: Callable[..., Routine]) -> Callable[..., Routine]:
    """The recursion check comes before the four instructions that save and set the run context."""

    def mutated(config: Any, form: Any, return_thunk: bool) -> Routine:
        made = enter(config, form, return_thunk)
        if not form.recursion_guard:
            return made
        lines = made.text.splitlines()
        first = next(n for n, line in enumerate(lines) if "bpf_set_run_ctx" in line)
        check = next(n for n, line in enumerate(lines) if line.strip() == f"jne {made.name}_recursion")
        saved = lines[first : first + 4]
        lines = lines[:first] + lines[first + 4 : check + 1] + saved + lines[check + 1 :]
        return Routine(made.name, "\n".join(lines) + "\n", made.symbols, made.jump_entries, made.host_call)

    return mutated


def _unguarded(attach: AttachType, *, sleepable: bool) -> tuple[str, str]:
    """Names of enter and exit without the recursion guard."""
    suffix = "_sleepable" if sleepable else ""
    return f"__bpf_prog_enter{suffix}", f"__bpf_prog_exit{suffix}"


def _skips_exit(invoke: Callable[..., Iterator[str]]) -> Callable[..., Iterator[str]]:
    """A run that enter refused skips exit as well."""

    def mutated(template: Any, call: Any, *, save_return: bool) -> Iterator[str]:
        for line in invoke(template, call, save_return=save_return):
            yield line.replace("je .Lskip", "je .Ldone") if line.startswith("je .Lskip") else line

    return mutated


def _only_noreturn(denied: Callable[..., frozenset[str]]) -> Callable[..., frozenset[str]]:
    def mutated(release: KernelRelease, attach_type: AttachType) -> frozenset[str]:
        return denied(release, attach_type) & release.noreturn_deny

    return mutated


def _put_after_rcu(programs: BpfPrograms, prog: BpfProg) -> None:
    prog.refs -= 1
    if prog.refs == 0:
        programs._kernel.rcu.call(RcuFlavour.RCU, lambda: programs._free(prog))


def _put_at_once(programs: BpfPrograms, prog: BpfProg) -> None:
    prog.refs -= 1
    if prog.refs == 0:
        programs._free(prog)


MUTANTS = (
    Mutant(
        "run-context-after-check",
        "6764e767f4af",
        "a run refused by the recursion guard has saved no run context, and exit restores an undefined one",
        wrap("trampoline.callees.prog_enter_exit._enter", _checks_first),
    ),
    Mutant(
        "no-recursion-guard",
        "ca06f55b9002",
        "a program that calls its own function runs recursively without end",
        replace("trampoline.tramp_links.enter_exit", _unguarded),
    ),
    Mutant(
        "exit-left-out-after-miss",
        "7645629f7dc8",
        "a run refused by the recursion guard skips exit too: its counter and read-side section stay entered",
        wrap("trampoline.image.generator._Template._invoke", _skips_exit),
    ),
    Mutant(
        "recursion-in-migrate-disable",
        "35e3815fa810",
        "functions that enter and exit call may be traced",
        wrap("trampoline.lab.btf_functions.denied_names", _only_noreturn),
    ),
    Mutant(
        "program-freed-at-once",
        "syscall.c:bpf_prog_put()",
        "a program is freed with its last link, while CPUs run it",
        replace("trampoline.bpf.prog.BpfPrograms.put", _put_at_once),
    ),
    Mutant(
        "sleepable-program-freed-after-rcu",
        "syscall.c:bpf_prog_put_deferred()",
        "a sleepable program waits for RCU only, and is freed while it sleeps",
        replace("trampoline.bpf.prog.BpfPrograms.put", _put_after_rcu),
    ),
)
