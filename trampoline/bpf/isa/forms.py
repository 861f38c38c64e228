"""Fields and values that an instruction of each code may have.

The forms that a program may be loaded with come first; ``rewritten`` are the forms that only the kernel creates:
probing and arena accesses, speculation barriers, direct tail calls, zero extensions, per-CPU addresses
(include/linux/filter.h). The verifier, not this module, rejects senseless programs (a division by zero, a shift by 64).
"""

from collections.abc import Callable
from dataclasses import dataclass

from trampoline.bpf.isa.insn import (
    ADDR_PERCPU,
    ADDR_SPACE_CAST,
    CALL,
    EXIT,
    GOTO,
    GOTOL,
    GOTOX,
    LD_IMM64,
    MAX_REG,
    MAX_REWRITTEN_REG,
    MAY_GOTO,
    NOSPEC,
    STACK_ARGS_REG,
    TAIL_CALL,
    ZEXT,
    Alu,
    Atomic,
    CallKind,
    Cls,
    Imm64,
    Insn,
    Jmp,
    Mode,
    Size,
    X,
)

_ATOMICS = frozenset(Atomic)
_NARROW_ATOMICS = frozenset({Atomic.LOAD_ACQ, Atomic.STORE_REL})
_COMPARISONS = [op for op in Jmp if op not in (Jmp.JA, Jmp.CALL, Jmp.EXIT, Jmp.JCOND, Jmp.TAIL_CALL)]

_Check = Callable[[Insn, bool], "str | None"]


@dataclass(frozen=True, slots=True)
class _Form:
    """Fields of a code that may be non-zero, and a further check."""

    fields: frozenset[str]
    check: _Check | None = None
    rewritten: bool = False


def fault(insn: Insn, *, rewritten: bool = False) -> str | None:
    """The reason why the fields are not an instruction; None if they are one."""
    form = _FORMS.get(insn.code)
    if form is None or (form.rewritten and not rewritten):
        return f"unknown opcode 0x{insn.code:02x}"
    for field in ("dst", "src", "off", "imm"):
        if field not in form.fields and getattr(insn, field):
            return f"opcode 0x{insn.code:02x}: reserved field {field} is {getattr(insn, field)}"
    if form.check and (reason := form.check(insn, rewritten)):
        return f"opcode 0x{insn.code:02x}: {reason}"
    last = MAX_REWRITTEN_REG if rewritten else MAX_REG
    for field, number, is_operand in (("dst", insn.dst, True), ("src", insn.src, insn.code not in (CALL, LD_IMM64))):
        if is_operand and number > last and not _is_stack_argument(insn, field):
            return f"opcode 0x{insn.code:02x}: no register {number} for {field}"
    return None


def _is_stack_argument(insn: Insn, field: str) -> bool:
    """True if the field is the base of an 8-byte access to stack arguments (since 7.2)."""
    if getattr(insn, field) != STACK_ARGS_REG:
        return False
    if field == "src":
        return insn.code == Cls.LDX | Mode.MEM | Size.DW
    return insn.code in (Cls.ST | Mode.MEM | Size.DW, Cls.STX | Mode.MEM | Size.DW)


def _one_of(field: str, *values: int) -> _Check:
    """Build a check that a field has one of the given values."""

    def check(insn: Insn, _rewritten: bool) -> str | None:
        value = getattr(insn, field)
        return None if value in values else f"{field} is {value}, not one of {', '.join(map(str, values))}"

    return check


def _mov32(insn: Insn, rewritten: bool) -> str | None:
    if insn.imm and not (rewritten and insn.imm == ZEXT and not insn.off and insn.dst == insn.src):
        return f"reserved field imm is {insn.imm}"
    return _one_of("off", 0, 8, 16)(insn, rewritten)


def _mov64(insn: Insn, rewritten: bool) -> str | None:
    if insn.off == ADDR_SPACE_CAST:  # from space 1 to 0 or back: imm is the destination space << 16 | the source space
        return _one_of("imm", 1, 1 << 16)(insn, rewritten)
    if insn.imm:
        return f"reserved field imm is {insn.imm}"
    if rewritten and insn.off == ADDR_PERCPU:
        return None
    return _one_of("off", 0, 8, 16, 32, ADDR_SPACE_CAST)(insn, rewritten)


def _call(insn: Insn, rewritten: bool) -> str | None:
    if insn.src > max(CallKind):
        return f"unknown kind of call {insn.src}"
    # A kfunc's off selects the BTF. The verifier puts a function's index there.
    if insn.off and not (insn.src == CallKind.KFUNC or (rewritten and insn.src == CallKind.SUBPROG)):
        return f"reserved field off is {insn.off}"
    return None


def _ld_imm64(insn: Insn, rewritten: bool) -> str | None:
    if insn.src > max(Imm64):
        return f"unknown kind of immediate {insn.src}"
    # As for a call.
    if insn.off and not (rewritten and insn.src == Imm64.FUNC):
        return f"reserved field off is {insn.off}"
    if insn.src in (Imm64.MAP_FD, Imm64.MAP_IDX) and insn.imm >> 32 and not rewritten:  # the verifier: its address
        return "the second slot of a map is not zero"
    return None


def _atomic(insn: Insn, _rewritten: bool) -> str | None:
    known = _ATOMICS if insn.size in (Size.W, Size.DW) else _NARROW_ATOMICS
    if insn.imm in known:
        return None
    return f"unknown atomic operation 0x{insn.imm & 0xFFFFFFFF:x} of {insn.size.bits} bits"


def _forms() -> dict[int, _Form]:
    forms: dict[int, _Form] = {}

    def add(code: int, fields: str, check: _Check | None = None, *, rewritten: bool = False) -> None:
        forms[code] = _Form(frozenset(fields.split()), check, rewritten)

    widths = _one_of("imm", 16, 32, 64)
    for cls in (Cls.ALU, Cls.ALU64):
        for op in Alu:
            if op in (Alu.DIV, Alu.MOD):
                add(cls | op, "dst off imm", _one_of("off", 0, 1))
                add(cls | op | X, "dst src off", _one_of("off", 0, 1))
            elif op not in (Alu.NEG, Alu.END):
                add(cls | op, "dst imm")
                add(cls | op | X, "dst src")
        add(cls | Alu.NEG, "dst")
        add(cls | Alu.END, "dst imm", widths)
    add(Cls.ALU | Alu.END | X, "dst imm", widths)
    add(Cls.ALU | Alu.MOV | X, "dst src off imm", _mov32)
    add(Cls.ALU64 | Alu.MOV | X, "dst src off imm", _mov64)

    for cls in (Cls.JMP, Cls.JMP32):
        for comparison in _COMPARISONS:
            add(cls | comparison, "dst off imm")
            add(cls | comparison | X, "dst src off")
    add(GOTO, "off")
    add(GOTOL, "imm")
    add(GOTOX, "dst")
    add(MAY_GOTO, "off")
    add(CALL, "src off imm", _call)
    add(EXIT, "")
    add(TAIL_CALL, "imm", rewritten=True)

    add(LD_IMM64, "dst src off imm", _ld_imm64)
    for size in Size:
        add(Cls.LDX | Mode.MEM | size, "dst src off")
        add(Cls.ST | Mode.MEM | size, "dst off imm")
        add(Cls.STX | Mode.MEM | size, "dst src off")
        add(Cls.STX | Mode.ATOMIC | size, "dst src off imm", _atomic)
        add(Cls.LDX | Mode.PROBE_MEM | size, "dst src off", rewritten=True)
        add(Cls.LDX | Mode.PROBE_MEM32 | size, "dst src off", rewritten=True)
        add(Cls.ST | Mode.PROBE_MEM32 | size, "dst off imm", rewritten=True)
        add(Cls.STX | Mode.PROBE_MEM32 | size, "dst src off", rewritten=True)
        add(Cls.STX | Mode.PROBE_ATOMIC | size, "dst src off imm", _atomic, rewritten=True)
        if size != Size.DW:
            add(Cls.LD | Mode.ABS | size, "imm")
            add(Cls.LD | Mode.IND | size, "src imm")
            add(Cls.LDX | Mode.MEMSX | size, "dst src off")
            add(Cls.LDX | Mode.PROBE_MEMSX | size, "dst src off", rewritten=True)
            add(Cls.LDX | Mode.PROBE_MEM32SX | size, "dst src off", rewritten=True)
    add(NOSPEC, "", rewritten=True)
    return forms


_FORMS = _forms()
LOADABLE = frozenset(code for code, form in _FORMS.items() if not form.rewritten)
REWRITTEN = frozenset(_FORMS) - LOADABLE
