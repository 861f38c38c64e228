"""Parser of eBPF text: the output of ``text``, and the spellings of the kernel's log and of LLVM."""

import re
from typing import NamedTuple

from trampoline.bpf.errors import BytecodeSyntaxError
from trampoline.bpf.isa.forms import fault
from trampoline.bpf.isa.insn import (
    ADDR_PERCPU,
    ADDR_SPACE_CAST,
    CALL,
    EXIT,
    GOTO,
    GOTOL,
    GOTOX,
    LD_IMM64,
    MAY_GOTO,
    NOSPEC,
    TAIL_CALL,
    ZEXT,
    Alu,
    CallKind,
    Cls,
    Imm64,
    Insn,
    Mode,
    X,
)
from trampoline.bpf.isa.parse_memory import ACCESS, atomic, load, store
from trampoline.bpf.isa.text import ALU_SIGNS, JMP_SIGNS, REWRITTEN_ACCESSES
from trampoline.bpf.isa.tokens import BpfRegister, Token, TokenLine

_ALU = {sign: (op, 0) for op, sign in ALU_SIGNS.items()} | {"s/=": (Alu.DIV, 1), "s%=": (Alu.MOD, 1)}
_JMP = {sign: op for op, sign in JMP_SIGNS.items()}
_SWAP = re.compile(r"(bswap|be|le)(16|32|64)")
_REWRITTEN_MODES = {(cls, name, plain): mode for (cls, mode), (name, plain) in REWRITTEN_ACCESSES.items()}
_U32 = (1 << 32) - 1


class _Goal(NamedTuple):
    """A label operand, and the field that receives its distance."""

    label: Token
    field: str


class _Statement(NamedTuple):
    insn: Insn
    goal: _Goal | None
    line: TokenLine
    start: Token
    slot: int


def parse(text: str, *, rewritten: bool = False) -> tuple[Insn, ...]:
    """Parse a text; ``rewritten`` also accepts instructions that only the verifier creates.

    Comments start with ``;``, ``//`` or a separate ``#``. A number with a colon, and an opcode in brackets, may precede
    an instruction and are ignored. ``call name#1`` is helper 1. Raises BytecodeSyntaxError.
    """
    labels: dict[str, int] = {}
    statements: list[_Statement] = []
    slot = 0
    for number, source in enumerate(text.split("\n"), 1):
        line = TokenLine(source, number)
        while line.next.kind == "name" and line.at(line.next.text, ":"):
            if line.next.text in labels:
                raise line.fail("a new label")
            labels[line.any().text] = slot
            line.any()
        if line.next.kind == "end":
            continue
        start = line.next
        insn, goal = _statement(line)
        line.end()
        statements.append(_Statement(insn, goal, line, start, slot))
        slot += insn.slots
    insns = []
    for statement in statements:
        insn = _resolve(statement, labels)
        if reason := fault(insn, rewritten=rewritten):
            start = statement.start
            raise BytecodeSyntaxError(statement.line.number, start.column, "an instruction", reason)
        insns.append(insn)
    return tuple(insns)


def _resolve(statement: _Statement, labels: dict[str, int]) -> Insn:
    """The instruction with the distance of its label filled in."""
    insn, goal, line, _, slot = statement
    if goal is None:
        return insn
    if goal.label.text not in labels:
        raise line.fail("a label defined in this text", goal.label)
    distance = labels[goal.label.text] - slot - 1
    if goal.field == "imm":
        return Insn(insn.code, insn.dst, insn.src, insn.off, distance & _U32 if insn.code == LD_IMM64 else distance)
    if not -0x8000 <= distance < 0x8000:
        raise line.fail("a label within 16 bits of slots", goal.label)
    return Insn(insn.code, insn.dst, insn.src, distance, insn.imm)


def _statement(line: TokenLine) -> tuple[Insn, _Goal | None]:
    match line.next.text:
        case "exit":
            line.any()
            return Insn(EXIT), None
        case "nospec":
            line.any()
            return Insn(NOSPEC), None
        case "goto" | "gotol" | "may_goto":
            code = {"goto": GOTO, "gotol": GOTOL, "may_goto": MAY_GOTO}[line.any().text]
            return _jump(line, code)
        case "gotox":
            line.any()
            return Insn(GOTOX, line.register(wide=True).number), None
        case "tail_call":
            line.any()
            return Insn(TAIL_CALL, imm=line.imm()), None
        case "if":
            return _condition(line)
        case "call":
            return _call(line)
        case "probe" | "arena":
            return _rewritten(line), None
        case "lock" | "*" | "store_release":
            return store(line), None
    if not line.at_register():
        raise line.fail("an instruction")
    return _assignment(line)


def _jump(line: TokenLine, code: int, dst: int = 0, src: int = 0, imm: int = 0) -> tuple[Insn, _Goal | None]:
    """Parse the target after goto."""
    field = "imm" if code == GOTOL else "off"
    distance, goal = _goal(line, field, 32 if code == GOTOL else 16)
    if code == GOTOL:
        return Insn(code, imm=distance), goal
    return Insn(code, dst, src, distance, imm), goal


def _goal(line: TokenLine, field: str, bits: int) -> tuple[int, _Goal | None]:
    """Parse a label, or a distance with a sign: +3, pc+3."""
    if line.at("pc", "+") or line.at("pc", "-"):
        line.any()
    if line.next.text not in ("+", "-"):
        return 0, _Goal(line.name("a label or a distance with a sign"), field)
    distance = line.integer(-(1 << bits - 1), (1 << bits - 1) - 1, "a distance")
    if line.take("<"):  # LLVM prints the target's name as well
        line.name("a label")
        line.want(">")
    return distance, None


def _condition(line: TokenLine) -> tuple[Insn, _Goal | None]:
    line.any()
    dst = line.register()
    if line.next.text not in _JMP:
        raise line.fail("a comparison")
    code = (Cls.JMP if dst.wide else Cls.JMP32) | _JMP[line.any().text]
    src = imm = 0
    if line.at_register():
        code |= X
        src = line.register(wide=dst.wide).number
    else:
        imm = line.operand()
    line.want("goto")
    return _jump(line, code, dst.number, src, imm)


def _call(line: TokenLine) -> tuple[Insn, _Goal | None]:
    line.any()
    if line.take("kfunc"):
        imm = line.imm()
        return Insn(CALL, src=CallKind.KFUNC, imm=imm, off=_off(line)), None
    if line.next.kind == "number" or line.at("-"):
        return Insn(CALL, imm=line.imm()), None
    if not line.at("pc", "+") and not line.at("pc", "-"):
        callee = line.name("a helper's number, a label, pc and a distance, or kfunc")
        if line.take("#"):
            return Insn(CALL, imm=line.imm()), None
        return Insn(CALL, src=CallKind.SUBPROG, off=_off(line)), _Goal(callee, "imm")
    distance, _ = _goal(line, "imm", 32)
    return Insn(CALL, src=CallKind.SUBPROG, imm=distance, off=_off(line)), None


def _off(line: TokenLine) -> int:
    """Parse off=1, for instructions that use that field for themselves."""
    return line.integer(-0x8000, 0x7FFF, "an offset") if line.take("off", "=") else 0


def _rewritten(line: TokenLine) -> Insn:
    """Parse an access as rewritten by the verifier: probe or arena, and the original access."""
    word = line.any()
    start = line.next
    if start.text in ("probe", "arena"):
        raise line.fail(f"an access that {word.text} supports")
    insn, _ = _statement(line)
    mode = _REWRITTEN_MODES.get((insn.cls, word.text, Mode(insn.mode))) if insn.cls in (1, 2, 3) else None
    if mode is None:
        raise line.fail(f"an access that {word.text} supports", start)
    return Insn(insn.cls | mode | insn.size, insn.dst, insn.src, insn.off, insn.imm)


def _assignment(line: TokenLine) -> tuple[Insn, _Goal | None]:
    start = line.next
    dst = line.register()
    cls = Cls.ALU64 if dst.wide else Cls.ALU
    sign = line.any()
    if sign.text in _ALU:
        op, off = _ALU[sign.text]
        if line.at_register():
            return Insn(cls | op | X, dst.number, line.register(wide=dst.wide).number, off), None
        return Insn(cls | op, dst.number, 0, off, line.operand()), None
    if sign.text != "=":
        raise line.fail("= or an operation and =", sign)
    if line.at_register():
        return Insn(cls | Alu.MOV | X, dst.number, line.register(wide=dst.wide).number), None
    if line.take("*"):
        return load(line, start, dst), None
    if line.take("("):
        return _sign_extension(line, cls, dst), None
    if line.take("&"):
        line.want("(", "void", "__percpu", "*", ")", "(")
        src = line.register(wide=dst.wide).number
        line.want(")")
        return Insn(cls | Alu.MOV | X, dst.number, src, ADDR_PERCPU), None
    if line.at("-", f"{'r' if dst.wide else 'w'}{dst.number}"):
        line.any()
        line.any()
        return Insn(cls | Alu.NEG, dst.number), None
    if line.next.kind == "name":
        return _named(line, cls, start, dst)
    first = line.next
    if first.kind != "number" and first.text not in ("-", "+"):
        raise line.fail("a register, an immediate, a load or an operation")
    value = line.integer(-(1 << 63), (1 << 64) - 1, "an immediate")
    if line.at("ll"):
        if not dst.wide:
            raise line.fail("a register (r)", start)
        line.any()
        return Insn(LD_IMM64, dst.number, imm=value & (1 << 64) - 1), None
    if not -(1 << 31) <= value < 1 << 32:
        raise line.fail("an immediate of 32 bits, or ll after it", first._replace(text=str(value)))
    return Insn(cls | Alu.MOV, dst.number, imm=value - (1 << 32) if value >> 31 == 1 else value), None


def _sign_extension(line: TokenLine, cls: Cls, dst: BpfRegister) -> Insn:
    match = ACCESS.fullmatch(line.next.text)
    if not match or match[1] != "s" or match[2] == "64" or (match[2] == "32" and not dst.wide):
        raise line.fail("s8, s16 or s32" if dst.wide else "s8 or s16")
    line.any()
    line.want(")")
    return Insn(cls | Alu.MOV | X, dst.number, line.register(wide=dst.wide).number, int(match[2]))


def _named(line: TokenLine, cls: Cls, start: Token, dst: BpfRegister) -> tuple[Insn, _Goal | None]:
    """Parse a named operation whose result is assigned to a register."""
    name = line.any()
    if name.text in ("map", "btf", "subprog"):
        if not dst.wide:
            raise line.fail("a register (r)", start)
        return _imm64(line, name, dst.number)
    if swap := _SWAP.fullmatch(name.text):
        if not dst.wide:
            raise line.fail("a register (r)", start)
        code = {"bswap": Cls.ALU64 | Alu.END, "be": Cls.ALU | Alu.END | X, "le": Cls.ALU | Alu.END}[swap[1]]
        line.register(wide=True, same=dst.number)
        return Insn(code, dst.number, imm=int(swap[2])), None
    if name.text == "zext":
        line.register(wide=dst.wide, same=dst.number)
        return Insn(cls | Alu.MOV | X, dst.number, dst.number, imm=ZEXT), None
    if name.text == "addr_space_cast":
        line.want("(")
        src = line.register(wide=dst.wide).number
        line.want(",")
        to = line.integer(0, 0x7FFF, "an address space")
        line.want(",")
        imm = to << 16 | line.integer(0, 0xFFFF, "an address space")
        line.want(")")
        return Insn(cls | Alu.MOV | X, dst.number, src, ADDR_SPACE_CAST, imm), None
    return atomic(line, name, start, dst), None


def _imm64(line: TokenLine, name: Token, dst: int) -> tuple[Insn, _Goal | None]:
    """Parse a 64-bit immediate: a map, a value in one, a type or a function."""
    line.want("[")
    high, goal = 0, None
    if name.text == "subprog":
        source = Imm64.FUNC
        if line.next.kind == "number":
            low = line.integer(0, (1 << 64) - 1, "an address")
        else:
            distance, goal = _goal(line, "imm", 32)
            low = distance & _U32
        line.want("]")
    elif name.text == "btf":
        source = Imm64.BTF_ID
        line.want("id", ":")
        low = line.imm() & _U32
        if line.take(",", "fd", ":"):
            high = line.imm() & _U32
        line.want("]")
    else:
        by_index = line.take("idx")
        if not by_index and not line.take("fd"):
            raise line.fail("fd or idx")
        line.want(":")
        number = line.integer(-(1 << 31), (1 << 64) - 1, "a map")
        low, high = number & _U32, number >> 32 if number > 0 else 0
        line.want("]")
        source = Imm64.MAP_IDX if by_index else Imm64.MAP_FD
        if not high and line.take("[", "0", "]"):
            source = Imm64.MAP_IDX_VALUE if by_index else Imm64.MAP_VALUE
            high = line.imm() & _U32
    line.take("ll")
    return Insn(LD_IMM64, dst, source, _off(line), high << 32 | low), goal
