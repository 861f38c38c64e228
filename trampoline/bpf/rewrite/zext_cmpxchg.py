"""Zero extension after 32-bit compare-and-exchange, whose result may keep r0's old upper half.

x86 writes the old value into eax only if the comparison fails (``opt_subreg_zext_lo32_rnd_hi32``).
"""

from collections.abc import Mapping

from trampoline.bpf.isa.insn import CALL, EXIT, GOTO, GOTOL, ZEXT, Alu, Atomic, Cls, Insn, Jmp, Mode, Size, X
from trampoline.bpf.rewrite.nodes import InsnNode, NodeList

_EXCHANGE = Cls.STX | Mode.ATOMIC | Size.W


def extend_exchanged(code: NodeList) -> None:
    """Insert the extension after each such exchange whose result is read as 64 bits."""
    exchanges = [n for n in code.nodes if n.insn.code == _EXCHANGE and n.insn.imm == Atomic.CMPXCHG]
    if not exchanges:
        return
    after = dict(zip(map(id, code.nodes), [*code.nodes[1:], None], strict=True))
    wide = {id(node) for node in exchanges if _upper_half_is_read(node, after)}
    extension = Insn(Cls.ALU | Alu.MOV | X, 0, 0, imm=ZEXT)
    code.expand(lambda node: [node, extension] if id(node) in wide else None)


def _upper_half_is_read(exchange: InsnNode, after: Mapping[int, InsnNode | None]) -> bool:
    seen: set[int] = set()
    work = [after[id(exchange)]]
    while work:
        node = work.pop()
        if node is None or id(node) in seen:
            continue
        seen.add(id(node))
        if _reads_wide(node.insn):
            return True
        if _defines(node.insn):
            continue
        if node.insn.code not in (EXIT, GOTO, GOTOL):
            work.append(after[id(node)])
        work.append(node.target)
    return False


def _reads_wide(insn: Insn) -> bool:
    """True if r0, a number, is read as 64 bits (``is_reg64``)."""
    cls, by_src = insn.cls, bool(insn.code & X) and insn.src == 0
    if cls == Cls.ALU64:
        return by_src or (insn.dst == 0 and insn.op != Alu.MOV)
    if cls == Cls.ALU:
        return insn.op == Alu.END and insn.imm == 64 and insn.dst == 0
    if cls == Cls.JMP:
        return insn.op not in (Jmp.JA, Jmp.CALL, Jmp.EXIT, Jmp.JCOND) and (by_src or insn.dst == 0)
    return cls == Cls.STX and insn.size == Size.DW and insn.src == 0


def _defines(insn: Insn) -> bool:
    """True if r0 is overwritten."""
    match insn.cls:
        case Cls.ALU | Cls.ALU64 | Cls.LDX:
            return insn.dst == 0
        case Cls.LD:
            return insn.dst == 0 or insn.mode != Mode.IMM
        case Cls.JMP:
            return insn.code == CALL
        case Cls.STX if insn.mode == Mode.ATOMIC:
            return insn.imm == Atomic.CMPXCHG or (bool(insn.imm & 1) and insn.src == 0)
    return False
