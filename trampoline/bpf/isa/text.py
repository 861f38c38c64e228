"""eBPF as text, in the form of the kernel's log and of LLVM.

A register is ``w1`` where the instruction uses 32 bits or fewer, otherwise ``r1``. An offset in memory is written
``+8``, an immediate in decimal unless it is a mask or a 64-bit value. Jumps and calls within the program name a label,
``L12`` for slot 12; without labels they are written ``+3``, in slots from the next instruction. Of the forms that only
the kernel creates, memory accesses start with ``probe`` or ``arena``; the others are written as in the kernel's log.
"""

from collections.abc import Mapping, Sequence

from trampoline.bpf.errors import BytecodeError
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
    Alu,
    Atomic,
    CallKind,
    Cls,
    Imm64,
    Insn,
    Jmp,
    Mode,
    Size,
    places,
)

ALU_SIGNS = {
    Alu.ADD: "+=",
    Alu.SUB: "-=",
    Alu.MUL: "*=",
    Alu.DIV: "/=",
    Alu.OR: "|=",
    Alu.AND: "&=",
    Alu.LSH: "<<=",
    Alu.RSH: ">>=",
    Alu.MOD: "%=",
    Alu.XOR: "^=",
    Alu.ARSH: "s>>=",
}
JMP_SIGNS = {
    Jmp.JEQ: "==",
    Jmp.JGT: ">",
    Jmp.JGE: ">=",
    Jmp.JSET: "&",
    Jmp.JNE: "!=",
    Jmp.JSGT: "s>",
    Jmp.JSGE: "s>=",
    Jmp.JLT: "<",
    Jmp.JLE: "<=",
    Jmp.JSLT: "s<",
    Jmp.JSLE: "s<=",
}
ATOMIC_SIGNS = {Atomic.ADD: "+=", Atomic.OR: "|=", Atomic.AND: "&=", Atomic.XOR: "^="}
FETCH_NAMES = {
    Atomic.FETCH_ADD: "atomic_fetch_add",
    Atomic.FETCH_OR: "atomic_fetch_or",
    Atomic.FETCH_AND: "atomic_fetch_and",
    Atomic.FETCH_XOR: "atomic_fetch_xor",
}
# (class, mode) of a rewritten access: the operation, and the mode before the rewrite.
REWRITTEN_ACCESSES = {
    (Cls.LDX, Mode.PROBE_MEM): ("probe", Mode.MEM),
    (Cls.LDX, Mode.PROBE_MEMSX): ("probe", Mode.MEMSX),
    (Cls.LDX, Mode.PROBE_MEM32): ("arena", Mode.MEM),
    (Cls.LDX, Mode.PROBE_MEM32SX): ("arena", Mode.MEMSX),
    (Cls.ST, Mode.PROBE_MEM32): ("arena", Mode.MEM),
    (Cls.STX, Mode.PROBE_MEM32): ("arena", Mode.MEM),
    (Cls.STX, Mode.PROBE_ATOMIC): ("arena", Mode.ATOMIC),
}


def format_insn(insn: Insn, label: str | None = None) -> str:
    """Format one instruction; ``label`` names the target of a jump, a call or a function's address.

    Raises BytecodeError for fields that are not an instruction.
    """
    if reason := fault(insn, rewritten=True):
        raise BytecodeError(reason)
    if insn.cls in (Cls.ALU, Cls.ALU64):
        return _alu(insn)
    if insn.cls in (Cls.JMP, Cls.JMP32):
        return _jump(insn, label)
    if insn.code == NOSPEC:
        return "nospec"
    if access := REWRITTEN_ACCESSES.get((insn.cls, Mode(insn.mode))):
        prefix, mode = access
        plain = Insn(insn.cls | mode | insn.size, insn.dst, insn.src, insn.off, insn.imm)
        return f"{prefix} {_memory(plain)}"
    return _imm64(insn, label) if insn.code == LD_IMM64 else _memory(insn)


def format_program(insns: Sequence[Insn]) -> str:
    """Format a program, one instruction per line, with labels at the targets of jumps and calls.

    A jump out of the program or into an LD_IMM64 is written as a distance.
    """
    slots = places(insns)
    known = set(slots)
    labels: dict[int, str] = {}
    goals = []
    for slot, insn in zip(slots, insns, strict=False):
        distance = insn.function if insn.jump is None else insn.jump
        goal = None if distance is None else slot + 1 + distance
        if goal in known:
            labels[goal] = f"L{goal}"
        goals.append(goal)
    lines = []
    for slot, insn, goal in zip(slots, insns, goals, strict=False):
        lines += _label_line(labels, slot)
        lines.append(f"    {format_insn(insn, None if goal is None else labels.get(goal))}")
    return "\n".join([*lines, *_label_line(labels, slots[-1]), ""])


def _label_line(labels: Mapping[int, str], slot: int) -> list[str]:
    return [f"{labels[slot]}:"] if slot in labels else []


def _register(number: int, *, wide: bool) -> str:
    return f"{'r' if wide else 'w'}{number}"


def _alu(insn: Insn) -> str:
    wide = insn.cls == Cls.ALU64
    dst, src = _register(insn.dst, wide=wide), _register(insn.src, wide=wide)
    operand = src if insn.from_register else str(insn.imm)
    if insn.op == Alu.NEG:
        return f"{dst} = -{dst}"
    if insn.op == Alu.END:  # always 64-bit names: the upper bits become zero
        name = "bswap" if wide else "be" if insn.from_register else "le"
        return f"r{insn.dst} = {name}{insn.imm} r{insn.dst}"
    if insn.op != Alu.MOV:
        signed = "s" if insn.off and insn.op in (Alu.DIV, Alu.MOD) else ""
        return f"{dst} {signed}{ALU_SIGNS[Alu(insn.op)]} {operand}"
    if insn.off == ADDR_PERCPU:
        return f"{dst} = &(void __percpu *)({src})"
    if insn.off == ADDR_SPACE_CAST:
        return f"{dst} = addr_space_cast({src}, {insn.imm >> 16}, {insn.imm & 0xFFFF})"
    if insn.off:
        return f"{dst} = (s{insn.off}){src}"
    return f"{dst} = zext {src}" if insn.from_register and insn.imm else f"{dst} = {operand}"


def _jump(insn: Insn, label: str | None) -> str:
    match insn.code:
        case c if c == EXIT:
            return "exit"
        case c if c == GOTOX:
            return f"gotox r{insn.dst}"
        case c if c == TAIL_CALL:
            return f"tail_call {insn.imm}"
        case c if c == CALL:
            return _call(insn, label)
    distance = insn.imm if insn.code == GOTOL else insn.off
    goal = label or f"{distance:+d}"
    for code, name in ((GOTO, "goto"), (GOTOL, "gotol"), (MAY_GOTO, "may_goto")):
        if insn.code == code:
            return f"{name} {goal}"
    wide = insn.cls == Cls.JMP
    if insn.from_register:
        operand = _register(insn.src, wide=wide)
    else:
        operand = f"0x{insn.imm & 0xFFFFFFFF:x}" if insn.op == Jmp.JSET else str(insn.imm)
    return f"if {_register(insn.dst, wide=wide)} {JMP_SIGNS[Jmp(insn.op)]} {operand} goto {goal}"


def _call(insn: Insn, label: str | None) -> str:
    off = f" off={insn.off}" if insn.off else ""
    match CallKind(insn.src):
        case CallKind.HELPER:
            return f"call {insn.imm}"
        case CallKind.SUBPROG:
            return f"call {label or f'pc{insn.imm:+d}'}{off}"
        case CallKind.KFUNC:
            return f"call kfunc {insn.imm}{off}"


def _imm64(insn: Insn, label: str | None) -> str:
    low, high = insn.imm & 0xFFFFFFFF, insn.imm >> 32
    match Imm64(insn.src):
        case Imm64.VALUE:
            value = f"0x{insn.imm:x}"
        case Imm64.MAP_FD:
            value = f"map[fd:{_map(insn.imm)}]"
        case Imm64.MAP_VALUE:
            value = f"map[fd:{low}][0]+{high}"
        case Imm64.MAP_IDX:
            value = f"map[idx:{_map(insn.imm)}]"
        case Imm64.MAP_IDX_VALUE:
            value = f"map[idx:{low}][0]+{high}"
        case Imm64.BTF_ID:
            value = f"btf[id:{low}, fd:{high}]" if high else f"btf[id:{low}]"
        case Imm64.FUNC:
            # The verifier stores an address there.
            distance = f"0x{insn.imm:x}" if insn.function is None else f"{insn.function:+d}"
            value = f"subprog[{label or distance}]"
    return f"r{insn.dst} = {value} ll" + (f" off={insn.off}" if insn.off else "")


def _map(imm: int) -> str:
    """A map's number, or the address that the verifier stored there."""
    return f"0x{imm:x}" if imm >> 32 else str(imm)


def _memory(insn: Insn) -> str:
    bits = insn.size.bits
    if insn.cls == Cls.LD:
        place = f"r{insn.src} + {insn.imm}" if insn.mode == Mode.IND else str(insn.imm)
        return f"r0 = *(u{bits} *)skb[{place}]"
    wide = insn.size == Size.DW
    dst, src = _register(insn.dst, wide=wide), _register(insn.src, wide=wide)
    if insn.cls == Cls.LDX:
        place = f"(r{insn.src} {insn.off:+d})"
        if insn.mode == Mode.MEMSX:
            return f"r{insn.dst} = *(s{bits} *){place}"
        return f"{dst} = *(u{bits} *){place}"
    address = f"r{insn.dst} {insn.off:+d}"
    pointer = f"(u{bits} *)({address})"
    if insn.cls == Cls.ST:
        return f"*{pointer} = {insn.imm}"
    if insn.mode == Mode.MEM:
        return f"*{pointer} = {src}"
    operation = Atomic(insn.imm)
    match operation:
        case Atomic.LOAD_ACQ:
            return f"{dst} = load_acquire((u{bits} *)(r{insn.src} {insn.off:+d}))"
        case Atomic.STORE_REL:
            return f"store_release({pointer}, {src})"
        case Atomic.XCHG:
            return f"{src} = {'xchg_64' if wide else 'xchg32_32'}({address}, {src})"
        case Atomic.CMPXCHG:
            r0 = _register(0, wide=wide)
            return f"{r0} = {'cmpxchg_64' if wide else 'cmpxchg32_32'}({address}, {r0}, {src})"
    if operation in FETCH_NAMES:
        return f"{src} = {FETCH_NAMES[operation]}({pointer}, {src})"
    return f"lock *{pointer} {ATOMIC_SIGNS[operation]} {src}"
