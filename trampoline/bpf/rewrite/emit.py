"""Constructors of the eBPF instructions that rewriting inserts."""

from trampoline.bpf.isa.insn import ADDR_PERCPU, CALL, EXIT, GOTO, LD_IMM64, Alu, Cls, Insn, Jmp, Mode, Size, X


def mov(dst: int, src: int) -> Insn:
    """``dst = src``."""
    return Insn(Cls.ALU64 | Alu.MOV | X, dst, src)


def mov_imm(dst: int, value: int) -> Insn:
    """``dst = value``."""
    return Insn(Cls.ALU64 | Alu.MOV, dst, imm=value)


def mov32(dst: int, src: int) -> Insn:
    """``w_dst = w_src``."""
    return Insn(Cls.ALU | Alu.MOV | X, dst, src)


def mov32_imm(dst: int, value: int) -> Insn:
    """``w_dst = value``."""
    return Insn(Cls.ALU | Alu.MOV, dst, imm=value)


def alu(op: int, dst: int, src: int) -> Insn:
    """``dst op= src``."""
    return Insn(Cls.ALU64 | op | X, dst, src)


def alu_imm(op: int, dst: int, value: int = 0, *, wide: bool = True) -> Insn:
    """``dst op= value``."""
    return Insn((Cls.ALU64 if wide else Cls.ALU) | op, dst, imm=value)


def alu32(op: int, dst: int, src: int) -> Insn:
    """``w_dst op= w_src``."""
    return Insn(Cls.ALU | op | X, dst, src)


def load(dst: int, base: int, offset: int, size: Size = Size.DW) -> Insn:
    """``dst = *(base + offset)``."""
    return Insn(Cls.LDX | Mode.MEM | size, dst, base, offset)


def store(base: int, offset: int, src: int, size: Size = Size.DW) -> Insn:
    """``*(base + offset) = src``."""
    return Insn(Cls.STX | Mode.MEM | size, base, src, offset)


def store_imm(base: int, offset: int, value: int, size: Size = Size.DW) -> Insn:
    """``*(base + offset) = value``."""
    return Insn(Cls.ST | Mode.MEM | size, base, 0, offset, value)


def jump(offset: int) -> Insn:
    """``goto +offset``."""
    return Insn(GOTO, off=offset)


def jump_if(op: int, dst: int, value: int, offset: int, *, wide: bool = True) -> Insn:
    """``if dst op value goto +offset``."""
    return Insn((Cls.JMP if wide else Cls.JMP32) | op, dst, 0, offset, value)


def jump_if_reg(op: int, dst: int, src: int, offset: int, *, wide: bool = True) -> Insn:
    """``if dst op src goto +offset``."""
    return Insn((Cls.JMP if wide else Cls.JMP32) | op | X, dst, src, offset)


def call(offset: int) -> Insn:
    """A call of a kernel function by its offset from ``__bpf_call_base``."""
    return Insn(CALL, imm=offset)


def address(dst: int, value: int) -> Insn:
    """``dst = value`` of 64 bits."""
    return Insn(LD_IMM64, dst, imm=value)


def percpu(dst: int, src: int) -> Insn:
    """``dst = src + this CPU's offset``."""
    return Insn(Cls.ALU64 | Alu.MOV | X, dst, src, ADDR_PERCPU)


def exit_() -> Insn:
    """``exit``."""
    return Insn(EXIT)


JEQ, JNE, JGT, JGE, JLE, JSGE = Jmp.JEQ, Jmp.JNE, Jmp.JGT, Jmp.JGE, Jmp.JLE, Jmp.JSGE
