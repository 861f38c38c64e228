"""Decides branches on constants before verification, as new releases do (``bpf_prune_dead_branches``).

Register values are followed along the control flow, ignoring conditions: where paths meet with different values, the
value is unknown. Verification sees the decided branches. Most of them it would decide itself, by dead code; a branch
whose both sides are also reached from elsewhere is decided only here.
"""

from collections.abc import Callable, Mapping

from trampoline.bpf.isa.insn import (
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
from trampoline.bpf.rewrite.nodes import InsnNode, NodeList

_U64, _U32 = (1 << 64) - 1, (1 << 32) - 1
Known = Mapping[int, int]
"""Registers whose values are known, as 64 bits."""


def decide_branches(code: NodeList) -> None:
    """Replace conditional jumps with known operands by jumps, or remove them."""
    after = dict(zip(map(id, code.nodes), [*code.nodes[1:], None], strict=True))
    for node, known in _follow(code, after):
        insn = node.insn
        if node.target is None or not _is_condition(insn):
            continue
        left = known.get(insn.dst)
        right = known.get(insn.src) if insn.code & X else insn.imm & _U64
        # The kernel keeps only 32-bit numbers for this.
        if left is None or left > _U32 or right is None or (insn.code & X and right > _U32):
            continue
        taken = _holds(insn.op, left, right, wide=insn.cls == Cls.JMP)
        node.insn = Insn(GOTO)
        if not taken:
            node.target = after[id(node)]


def _is_condition(insn: Insn) -> bool:
    return insn.cls in (Cls.JMP, Cls.JMP32) and insn.op in _COMPARE


def _follow(code: NodeList, after: Mapping[int, InsnNode | None]) -> list[tuple[InsnNode, Known]]:
    """Each reached node with the registers known before it."""
    before: dict[int, dict[int, int]] = {}
    nodes: dict[int, InsnNode] = {}
    work: list[tuple[InsnNode, dict[int, int]]] = [(start, {}) for start in code.starts]
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
            return []  # target unknown
    return [(node, before[place]) for place, node in nodes.items()]


def _after(insn: Insn, known: dict[int, int]) -> dict[int, int]:
    """Registers known after an instruction."""
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
    elif cls == Cls.LD:
        for reg in range(6):
            then.pop(reg, None)
    elif cls == Cls.LDX:
        then.pop(insn.dst, None)
    elif cls == Cls.STX and insn.mode == Mode.ATOMIC:
        then.pop(0 if insn.imm == Atomic.CMPXCHG else insn.src, None)
        if insn.imm == Atomic.LOAD_ACQ:
            then.pop(insn.dst, None)
    return then


def _computed(insn: Insn, known: Known) -> int | None:
    """The result of arithmetic on known numbers, for the operations that the kernel follows."""
    left, value = known.get(insn.dst), insn.imm & _U64
    from_register = bool(insn.code & X)
    right = known.get(insn.src) if from_register else value
    result: int | None = None
    if insn.op == Alu.MOV:
        result = right
        if from_register and insn.off:
            extends = right is not None and insn.off in (8, 16, 32)
            result = _signed(right & (1 << insn.off) - 1, insn.off) if right is not None and extends else None
    elif insn.op == Alu.AND and 0 in (left, right):
        result = 0
    elif left is not None and right is not None:
        if insn.op == Alu.AND:
            result = left & right
        elif insn.op in (Alu.ADD, Alu.SUB) and not from_register:
            result = left + right if insn.op == Alu.ADD else left - right
    if result is None:
        return None
    return result & (_U64 if insn.cls == Cls.ALU64 else _U32)


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
