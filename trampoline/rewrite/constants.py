"""Branches on constants are decided before verification in new releases (``bpf_prune_dead_branches``).

What registers hold is followed along the flow of control, without looking at conditions: where paths meet with
different values, the value is unknown. Verification sees the decided branches; what it would have proved too goes
with dead code, but a branch with both sides reached from elsewhere goes only here.
"""

from collections.abc import Callable, Mapping

from trampoline.bpf.insn import (
    CALL,
    EXIT,
    GOTO,
    GOTOL,
    GOTOX,
    LD_IMM64,
    TAIL_CALL,
    Alu,
    Atomic,
    Cls,
    Insn,
    Jmp,
    Mode,
    X,
)
from trampoline.rewrite.nodes import Code, Node

_U64, _U32 = (1 << 64) - 1, (1 << 32) - 1
Known = Mapping[int, int]
"""Registers whose values are known, as 64 bits."""


def decide_branches(code: Code) -> None:
    """Comparisons of known registers with constants become jumps, or nothing."""
    after = dict(zip(map(id, code.nodes), [*code.nodes[1:], None], strict=True))
    for node, known in _follow(code, after):
        insn = node.insn
        if node.target is None or not _is_condition(insn):
            continue
        left = known.get(insn.dst)
        if left is None or insn.code & X:
            continue
        taken = _holds(insn.op, left, insn.imm, wide=insn.cls == Cls.JMP)
        node.insn = Insn(GOTO)
        if not taken:
            node.target = after[id(node)]


def _is_condition(insn: Insn) -> bool:
    return insn.cls in (Cls.JMP, Cls.JMP32) and insn.op in _COMPARE


def _follow(code: Code, after: Mapping[int, Node | None]) -> list[tuple[Node, Known]]:
    """Each reached node with what is known before it."""
    before: dict[int, dict[int, int]] = {}
    nodes: dict[int, Node] = {}
    work: list[tuple[Node, dict[int, int]]] = [(start, {}) for start in code.starts]
    while work:
        node, known = work.pop()
        old = before.get(id(node))
        if old is not None:
            known = {reg: value for reg, value in old.items() if known.get(reg) == value}
            if len(known) == len(old):
                continue
        before[id(node)], nodes[id(node)] = known, node
        then = _after(node.insn, known)
        code_ = node.insn.code
        next_node = after[id(node)]
        if code_ not in (EXIT, GOTO, GOTOL, GOTOX) and next_node is not None:
            work.append((next_node, then))
        if node.target is not None:
            work.append((node.target, then))
        if code_ == GOTOX:
            return []  # where it goes is not known here
    return [(node, before[place]) for place, node in nodes.items()]


def _after(insn: Insn, known: dict[int, int]) -> dict[int, int]:
    """What is known behind an instruction."""
    cls = insn.cls
    then = dict(known)
    if insn.code in (CALL, TAIL_CALL):
        for reg in range(6):
            then.pop(reg, None)
    elif insn.code == LD_IMM64:
        then.pop(insn.dst, None)
        if insn.src == 0:
            then[insn.dst] = insn.imm
    elif cls in (Cls.ALU, Cls.ALU64):
        value = _computed(insn, known)
        then.pop(insn.dst, None)
        if value is not None:
            then[insn.dst] = value
    elif cls in (Cls.LD, Cls.LDX):
        then.pop(insn.dst if cls == Cls.LDX else 0, None)
    elif cls == Cls.STX and insn.mode == Mode.ATOMIC:
        then.pop(0 if insn.imm == Atomic.CMPXCHG else insn.src, None)
        if insn.imm == Atomic.LOAD_ACQ:
            then.pop(insn.dst, None)
    return then


def _computed(insn: Insn, known: Known) -> int | None:
    """The result of arithmetic on known numbers: moves, sums and bit operations."""
    wide = insn.cls == Cls.ALU64
    right = known.get(insn.src) if insn.code & X else insn.imm & _U64
    if right is None or insn.off:
        return None
    if insn.op == Alu.MOV:
        return right if wide else right & _U32
    left = known.get(insn.dst)
    if left is None:
        return None
    match insn.op:
        case Alu.ADD:
            value = left + right
        case Alu.SUB:
            value = left - right
        case Alu.AND:
            value = left & right
        case Alu.OR:
            value = left | right
        case Alu.XOR:
            value = left ^ right
        case _:
            return None
    return value & (_U64 if wide else _U32)


def _signed(value: int, bits: int) -> int:
    return (value ^ 1 << bits - 1) - (1 << bits - 1)


_COMPARE: dict[Jmp, Callable[[int, int, int], bool]] = {
    Jmp.JEQ: lambda a, b, bits: a == b,
    Jmp.JNE: lambda a, b, bits: a != b,
    Jmp.JSET: lambda a, b, bits: bool(a & b),
    Jmp.JGT: lambda a, b, bits: a > b,
    Jmp.JGE: lambda a, b, bits: a >= b,
    Jmp.JLT: lambda a, b, bits: a < b,
    Jmp.JLE: lambda a, b, bits: a <= b,
    Jmp.JSGT: lambda a, b, bits: _signed(a, bits) > _signed(b, bits),
    Jmp.JSGE: lambda a, b, bits: _signed(a, bits) >= _signed(b, bits),
    Jmp.JSLT: lambda a, b, bits: _signed(a, bits) < _signed(b, bits),
    Jmp.JSLE: lambda a, b, bits: _signed(a, bits) <= _signed(b, bits),
}


def _holds(op: int, left: int, right: int, *, wide: bool) -> bool:
    bits = 64 if wide else 32
    full = (1 << bits) - 1
    return _COMPARE[Jmp(op)](left & full, right & full, bits)
