"""The program's functions; jumps must stay within them (``add_subprog_and_kfunc``, ``check_subprogs``)."""

from errno import E2BIG, EPERM

from trampoline.bpf.isa.insn import CALL, EXIT, GOTO, GOTOL, GOTOX, CallKind, Cls, Insn, Jmp, places
from trampoline.bpf.verifier.prepass.insn_fields import is_call_of_function, is_function_address
from trampoline.bpf.verifier.prepass.kfunc_ids import check_kfunc_ids
from trampoline.bpf.verifier.state.env import Env
from trampoline.bpf.verifier.state.result import SubprogFacts

MAX_SUBPROGS = 256
_TAIL_CALL_HELPER = 12


def target_of(slot: int, insn: Insn) -> int:
    """Slot of the function that an instruction calls or takes the address of."""
    low = insn.imm & 0xFFFFFFFF
    return slot + 1 + ((low ^ 1 << 31) - (1 << 31))


def find_functions(env: Env) -> None:
    """Fill ``env.subprogs``, ``env.subprog_at`` and ``env.subprog_types``, in the order of their slots."""
    starts = {0}
    for slot, insn in enumerate(env.insns):
        if insn is None or not (is_call_of_function(insn) or is_function_address(insn)):
            continue
        env.slot = slot
        if not env.capabilities.bpf:
            env.refuse(EPERM, "loading/calling other bpf or kernel functions are allowed for CAP_BPF and CAP_SYS_ADMIN")
        target = target_of(slot, insn)
        if not 0 <= target < len(env.insns):
            env.invalid("call to invalid destination")
        if target not in starts and len(starts) >= MAX_SUBPROGS:
            env.refuse(E2BIG, "too many subprograms")
        starts.add(target)
    check_kfunc_ids(env)
    env.subprogs = [SubprogFacts(start) for start in sorted(starts)]
    env.subprog_at = {function.start: number for number, function in enumerate(env.subprogs)}
    _take_types(env)
    for number, function in enumerate(env.subprogs):
        env.say(f"func#{number} @{function.start}")


def _take_types(env: Env) -> None:
    """Take names and linkage from func_info, if it covers every function."""
    btf = env.program.btf
    if btf is None or not env.program.funcs:
        return
    types = {info.slot: info.type_id for info in env.program.funcs}
    if any(function.start not in types for function in env.subprogs):
        return
    env.subprog_types = [types[function.start] for function in env.subprogs]
    for function, type_id in zip(env.subprogs, env.subprog_types, strict=True):
        record = btf.type(type_id)
        function.name = record.name
        function.is_global = record.count == 1


def end_of(env: Env, subprog: int) -> int:
    """The slot after a function's last."""
    return env.subprogs[subprog + 1].start if subprog + 1 < len(env.subprogs) else len(env.insns)


def check_functions(env: Env) -> None:
    """Refuse jumps out of a function and functions that can run past their last instruction."""
    for number, function in enumerate(env.subprogs):
        end = end_of(env, number)
        last: Insn | None = None
        for slot in range(function.start, end):
            env.slot = slot
            last = env.insns[slot]
            if last is None:
                continue
            if last.code == CALL and last.src == CallKind.HELPER and last.imm == _TAIL_CALL_HELPER:
                function.has_tail_call = True
            cls = last.code & 7
            if cls not in (Cls.JMP, Cls.JMP32) or last.op in (Jmp.EXIT, Jmp.CALL) or last.code == GOTOX:
                continue
            target = slot + 1 + (last.imm if last.code == GOTOL else last.off)
            if not function.start <= target < end:
                env.invalid(f"jump out of range from insn {slot} to {target}")
        if last is None or last.code not in (EXIT, GOTO, GOTOL, GOTOX):
            env.invalid("last insn is not an exit or jmp")


def slots_of(env: Env) -> list[int]:
    """Slot of each instruction of the program."""
    return places(env.program.insns)[:-1]
