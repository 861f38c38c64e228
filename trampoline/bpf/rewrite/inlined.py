"""Helpers and kfuncs that become instructions instead of calls."""

from collections.abc import Callable
from errno import EINVAL

from trampoline.bpf.isa.insn import Alu, Cls, Insn, Jmp, Size, X
from trampoline.bpf.rewrite import emit
from trampoline.bpf.rewrite.environment import Environment
from trampoline.bpf.rewrite.rules import RewriteRules
from trampoline.bpf.uapi import AttachType, ProgType

_EOPNOTSUPP = 95
_RETURNS = (
    AttachType.TRACE_FEXIT,
    AttachType.MODIFY_RETURN,
    AttachType.TRACE_FSESSION,
    AttachType.TRACE_FEXIT_MULTI,
    AttachType.TRACE_FSESSION_MULTI,
)
"""Attach types whose context contains a return value."""


def _count(rules: RewriteRules) -> list[Insn]:
    """r0 = number of argument slots, from the count word at ctx[-1]."""
    mask = [emit.alu_imm(Alu.AND, 0, rules.count_mask)] if rules.count_mask else []
    return [emit.load(0, 1, -8), *mask]


def _get_func_arg(rules: RewriteRules) -> list[Insn]:
    return [
        *_count(rules),
        Insn(Cls.JMP32 | Jmp.JGE | X, 2, 0, 6),  # no such argument
        emit.alu_imm(Alu.LSH, 2, 3),
        emit.alu(Alu.ADD, 2, 1),
        emit.load(0, 2, 0),
        emit.store(3, 0, 0),
        emit.mov_imm(0, 0),
        emit.jump(1),
        emit.mov_imm(0, -EINVAL),
    ]


def _get_func_ret(rules: RewriteRules, attach: int) -> list[Insn]:
    if attach not in _RETURNS:
        return [emit.mov_imm(0, -_EOPNOTSUPP)]
    return [
        *_count(rules),
        emit.alu_imm(Alu.LSH, 0, 3),
        emit.alu(Alu.ADD, 0, 1),
        emit.load(3, 0, 0),
        emit.store(2, 0, 3),
        emit.mov_imm(0, 0),
    ]


def _percpu_variable(name: str, rules: RewriteRules, env: Environment, size: Size) -> list[Insn]:
    offset = _signed32(env.variable(name))
    start = emit.mov_imm(0, offset) if rules.percpu_wide else emit.mov32_imm(0, offset)
    return [start, emit.percpu(0, 0), emit.load(0, 0, 0, size)]


def _signed32(value: int) -> int:
    return ((value & 0xFFFFFFFF) ^ 1 << 31) - (1 << 31)


def inlined_helper(
    name: str, prog_type: int, attach: int, rules: RewriteRules, env: Environment
) -> list[Insn] | None:
    """Instructions that replace a helper call; None for helpers that are called."""
    if prog_type == ProgType.TRACING:
        match name:
            case "get_func_arg":
                return _get_func_arg(rules)
            case "get_func_ret":
                return _get_func_ret(rules, attach)
            case "get_func_arg_cnt":
                return _count(rules)
            case "get_func_ip":
                return [emit.load(0, 1, -16)]
    match name:
        case "jiffies64":
            return [emit.address(0, env.variable("jiffies")), emit.load(0, 0, 0)]
        case "get_smp_processor_id" if rules.cpu_number:
            return _percpu_variable(rules.cpu_number, rules, env, Size.W)
        case "get_current_task" | "get_current_task_btf" if rules.current_task:
            return _percpu_variable(rules.current_task, rules, env, Size.DW)
        case "kptr_xchg" if rules.inlines_kptr_xchg:
            return [emit.mov(0, 2), Insn(Cls.STX | 0xC0 | Size.DW, 1, 0, 0, 0xE1)]  # xchg *(u64 *)(r1), r0
    return None


def _session_cookie() -> list[Insn]:
    """r0 = address of the cookie: the second byte of the count word is its distance below the context in slots."""
    return [
        emit.load(0, 1, -8),
        emit.alu_imm(Alu.RSH, 0, 8),
        emit.alu_imm(Alu.AND, 0, 0xFF),
        emit.alu_imm(Alu.LSH, 0, 3),
        emit.alu(Alu.SUB, 0, 1),
        emit.alu_imm(Alu.NEG, 0),
    ]


def _session_is_return() -> list[Insn]:
    """r0 = bit 63 of the count word."""
    return [emit.load(0, 1, -8), emit.alu_imm(Alu.RSH, 0, 63), emit.alu_imm(Alu.AND, 0, 1)]


def _same() -> list[Insn]:
    return [emit.mov(0, 1)]


_KFUNCS: dict[str, Callable[[], list[Insn]]] = {
    "bpf_rdonly_cast": _same,
    "bpf_cast_to_kern_ctx": _same,
}
_FSESSION = (AttachType.TRACE_FSESSION, AttachType.TRACE_FSESSION_MULTI)
_SESSION_KFUNCS: dict[str, Callable[[], list[Insn]]] = {
    "bpf_session_cookie": _session_cookie,
    "bpf_session_is_return": _session_is_return,
}


def inlined_kfunc(name: str, attach: int) -> list[Insn] | None:
    """Instructions that replace a kfunc call; None for kfuncs that are called."""
    table = {**_KFUNCS, **(_SESSION_KFUNCS if attach in _FSESSION else {})}
    return table[name]() if name in table else None
