"""What eBPF programs mean: an interpreter written from RFC 9669, to compare the machine code with.

It knows nothing of x86: registers are Python numbers of 64 bits without sign, memory is regions of bytes at guest
addresses. Each function that is called gets a frame of 512 bytes of stack below the caller's.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from trampoline.bpf.isa.insn import (
    CALL,
    EXIT,
    GOTO,
    GOTOL,
    LD_IMM64,
    Alu,
    Atomic,
    CallKind,
    Cls,
    Imm64,
    Insn,
    Jmp,
    Mode,
    places,
)

STACK_SIZE = 512
MAX_FRAMES = 8
U64 = (1 << 64) - 1
U32 = (1 << 32) - 1

Helper = Callable[[int, int, int, int, int], int]


class InterpreterError(Exception):
    """The program did what has no meaning: it left its memory, its code or its limit of steps."""


class Memory:
    """Regions of bytes at guest addresses."""

    def __init__(self, regions: Mapping[int, bytes]) -> None:
        self.regions = {start: bytearray(content) for start, content in regions.items()}

    def read(self, address: int, size: int) -> int:
        region, at = self._find(address, size)
        return int.from_bytes(region[at : at + size], "little")

    def write(self, address: int, size: int, value: int) -> None:
        region, at = self._find(address, size)
        region[at : at + size] = (value & (1 << 8 * size) - 1).to_bytes(size, "little")

    def _find(self, address: int, size: int) -> tuple[bytearray, int]:
        for start, region in self.regions.items():
            if start <= address and address + size <= start + len(region):
                return region, address - start
        raise InterpreterError(f"no {size} bytes at {address:#x}")


@dataclass
class _Frame:
    """What a call has to bring back: where to go on, r6 to r10."""

    slot: int
    saved: list[int]


@dataclass
class Interpreter:
    """Runs one program. ``stack_top`` is the first r10; ``memory`` is what the program may reach beside its stack."""

    insns: Sequence[Insn]
    memory: Memory
    stack_top: int = 0xFFFFC90000A00000
    helpers: Mapping[int, Helper] = field(default_factory=dict)
    max_steps: int = 1_000_000

    def run(self, *args: int) -> int:
        """What the program returns (r0) when it is given these arguments (r1 to r5)."""
        self.memory.regions[self.stack_top - MAX_FRAMES * STACK_SIZE] = bytearray(MAX_FRAMES * STACK_SIZE)
        at = dict(zip(places(self.insns), self.insns, strict=False))
        self.regs = [0, *args, *[0] * (10 - len(args))]
        self.regs[10] = self.stack_top
        self.frames: list[_Frame] = []
        self.slot = 0
        self.steps = 0
        while True:
            insn = at.get(self.slot)
            if insn is None:
                raise InterpreterError(f"no instruction at slot {self.slot}")
            if self.steps == self.max_steps:
                raise InterpreterError(f"still running after {self.steps} steps")
            self.steps += 1
            self.slot += insn.slots
            if insn.code == EXIT and not self.frames:
                return self.regs[0]
            _BY_CLASS[insn.cls](self, insn)

    # Arithmetic -----------------------------------------------------------------------------------------------------

    def _operand(self, insn: Insn, mask: int) -> int:
        """The second operand; immediates are extended with their sign."""
        return (self.regs[insn.src] if insn.from_register else insn.imm) & mask

    def alu(self, insn: Insn) -> None:
        bits = 64 if insn.cls == Cls.ALU64 else 32
        mask = (1 << bits) - 1
        old = self.regs[insn.dst]
        if insn.op == Alu.END:
            self.regs[insn.dst] = self._byte_order(insn, old)
            return
        a, b = old & mask, self._operand(insn, mask)
        if insn.op == Alu.MOV:
            result = signed(b, insn.off) if insn.off else b
        elif insn.op in (Alu.DIV, Alu.MOD):
            result = divide(insn.op, a, b, bits if insn.off else None)
        elif insn.op in (Alu.LSH, Alu.RSH, Alu.ARSH):
            result = _SHIFTS[Alu(insn.op)](signed(a, bits) if insn.op == Alu.ARSH else a, b & bits - 1)
        else:
            result = _ARITHMETIC[Alu(insn.op)](a, b)
        self.regs[insn.dst] = result & mask  # 32-bit operations clear the upper half

    @staticmethod
    def _byte_order(insn: Insn, value: int) -> int:
        """le, be and bswap: the host is little endian, so le only cuts."""
        size = insn.imm // 8
        content = (value & (1 << insn.imm) - 1).to_bytes(size, "little")
        swaps = insn.cls == Cls.ALU64 or insn.from_register
        return int.from_bytes(content, "big" if swaps else "little")

    # Jumps and calls ------------------------------------------------------------------------------------------------

    def jump(self, insn: Insn) -> None:
        if insn.code == GOTO:
            self.slot += insn.off
        elif insn.code == GOTOL:
            self.slot += insn.imm
        elif insn.code == CALL:
            self._call(insn)
        elif insn.code == EXIT:
            frame = self.frames.pop()
            self.slot, self.regs[6:11] = frame.slot, frame.saved
        elif self._holds(insn):
            self.slot += insn.off

    def _holds(self, insn: Insn) -> bool:
        bits = 64 if insn.cls == Cls.JMP else 32
        mask = (1 << bits) - 1
        a, b = self.regs[insn.dst] & mask, self._operand(insn, mask)
        compare, is_signed = _COMPARISONS[Jmp(insn.op)]
        return bool(compare(signed(a, bits), signed(b, bits)) if is_signed else compare(a, b))

    def _call(self, insn: Insn) -> None:
        if insn.src == CallKind.SUBPROG:
            if len(self.frames) == MAX_FRAMES - 1:
                raise InterpreterError("too many frames")
            self.frames.append(_Frame(self.slot, self.regs[6:11]))
            self.regs[10] -= STACK_SIZE
            self.slot += insn.imm
        elif insn.src == CallKind.HELPER and insn.imm in self.helpers:
            self.regs[0] = self.helpers[insn.imm](*self.regs[1:6]) & U64
        else:
            raise InterpreterError(f"no function {insn.imm} of kind {insn.src}")

    # Memory ---------------------------------------------------------------------------------------------------------

    def load_imm64(self, insn: Insn) -> None:
        if insn.code != LD_IMM64 or insn.src != Imm64.VALUE:
            raise InterpreterError(f"not a plain immediate: {insn}")
        self.regs[insn.dst] = insn.imm

    def load(self, insn: Insn) -> None:
        bits = insn.size.bits
        value = self.memory.read(self.regs[insn.src] + insn.off & U64, bits // 8)
        self.regs[insn.dst] = signed(value, bits) & U64 if insn.mode == Mode.MEMSX else value

    def store_imm(self, insn: Insn) -> None:
        self.memory.write(self.regs[insn.dst] + insn.off & U64, insn.size.bits // 8, insn.imm)

    def store(self, insn: Insn) -> None:
        address, size = self.regs[insn.dst] + insn.off & U64, insn.size.bits // 8
        if insn.mode == Mode.MEM or insn.imm == Atomic.STORE_REL:
            self.memory.write(address, size, self.regs[insn.src])
        elif insn.imm == Atomic.LOAD_ACQ:
            self.regs[insn.dst] = self.memory.read(self.regs[insn.src] + insn.off & U64, size)
        else:
            self._atomic(insn, address, size)

    def _atomic(self, insn: Insn, address: int, size: int) -> None:
        mask = (1 << 8 * size) - 1
        old, operand = self.memory.read(address, size), self.regs[insn.src] & mask
        if insn.imm == Atomic.CMPXCHG:
            if old == self.regs[0] & mask:
                self.memory.write(address, size, operand)
            self.regs[0] = old
            return
        new = operand if insn.imm == Atomic.XCHG else _ARITHMETIC[Alu(insn.imm & 0xF0)](old, operand)
        self.memory.write(address, size, new)
        if insn.imm & Atomic.FETCH_ADD:
            self.regs[insn.src] = old


def signed(value: int, bits: int) -> int:
    """The lowest bits of a number as one with a sign."""
    sign = 1 << bits - 1
    return (value & (1 << bits) - 1 ^ sign) - sign


def divide(op: int, a: int, b: int, signed_bits: int | None) -> int:
    """Quotient, cut towards zero, or remainder. By zero: 0, and the dividend. The most negative number by -1 wraps."""
    if b == 0:
        return 0 if op == Alu.DIV else a
    if signed_bits is not None:
        a, b = signed(a, signed_bits), signed(b, signed_bits)
    quotient = abs(a) // abs(b)
    if (a < 0) != (b < 0):
        quotient = -quotient
    return quotient if op == Alu.DIV else a - b * quotient


_ARITHMETIC: dict[Alu, Callable[[int, int], int]] = {
    Alu.ADD: operator.add,
    Alu.SUB: operator.sub,
    Alu.MUL: operator.mul,
    Alu.OR: operator.or_,
    Alu.AND: operator.and_,
    Alu.XOR: operator.xor,
    Alu.NEG: lambda a, _: -a,
}
_SHIFTS: dict[Alu, Callable[[int, int], int]] = {
    Alu.LSH: operator.lshift,
    Alu.RSH: operator.rshift,
    Alu.ARSH: operator.rshift,
}
# Comparison, and whether it is one of numbers with a sign.
_COMPARISONS: dict[Jmp, tuple[Callable[[int, int], object], bool]] = {
    Jmp.JEQ: (operator.eq, False),
    Jmp.JNE: (operator.ne, False),
    Jmp.JSET: (operator.and_, False),
    Jmp.JGT: (operator.gt, False),
    Jmp.JGE: (operator.ge, False),
    Jmp.JLT: (operator.lt, False),
    Jmp.JLE: (operator.le, False),
    Jmp.JSGT: (operator.gt, True),
    Jmp.JSGE: (operator.ge, True),
    Jmp.JSLT: (operator.lt, True),
    Jmp.JSLE: (operator.le, True),
}
_BY_CLASS: dict[Cls, Callable[[Interpreter, Insn], None]] = {
    Cls.LD: Interpreter.load_imm64,
    Cls.LDX: Interpreter.load,
    Cls.ST: Interpreter.store_imm,
    Cls.STX: Interpreter.store,
    Cls.ALU: Interpreter.alu,
    Cls.ALU64: Interpreter.alu,
    Cls.JMP: Interpreter.jump,
    Cls.JMP32: Interpreter.jump,
}
