"""Random eBPF programs that mean something: they end, and read and write nothing but what is theirs.

The first function gets the address of a context in r1, calls others, and at its end writes its registers and its stack
into the context. No value that is computed depends on an address, so that two ways to run a program can be compared.

The frame of each function, and what a register holds between two statements:

    r10-8    address of the zone: the context, or memory that the caller gave, in r1
    r10-16   room for a register
    r10-24   counter of a loop, r10-32 of the loop in it
    ...      nothing, so that programs differ in their stacks' depths
    window   WINDOW bytes of numbers at the stack's lower end

    every register that the function uses is a number; none is an address but for the length of a memory access
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random

from hypothesis import strategies as st
from kernel_releases import RELEASES

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
    Insn,
    Jmp,
    Mode,
    Size,
    X,
)
from trampoline.bpf.isa.rules import IsaRules

ZONE = WINDOW = 64
KEPT = 32
"""Bytes of a frame above everything else: the zone's address, room for a register, counters."""
CONTEXT_SIZE = ZONE + 10 * 8 + WINDOW

MIX = 7
HELPERS = {MIX: lambda a, b, c, d, e: 3 * a + 5 * b + 7 * c + 11 * d + 13 * e}
"""What programs may call, by helpers' numbers."""

_IMMS = (0, 1, 2, -1, -2, 7, 8, 127, 128, -128, -129, 255, 256, 0x7FFF, 0xFFFF, 2**31 - 1, -(2**31))
_IMMS64 = (*(imm % 2**64 for imm in _IMMS), 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**63 + 2**31, 2**64 - 2**31)
_BINARY = (Alu.ADD, Alu.SUB, Alu.MUL, Alu.OR, Alu.AND, Alu.XOR, Alu.MOV)
_SHIFTS = (Alu.LSH, Alu.RSH, Alu.ARSH)
_CONDITIONS = [op for op in Jmp if op not in (Jmp.JA, Jmp.CALL, Jmp.EXIT, Jmp.JCOND, Jmp.TAIL_CALL)]
_ATOMICS = [op for op in Atomic if op not in (Atomic.LOAD_ACQ, Atomic.STORE_REL)]
_WIDTHS = {Cls.ALU: (8, 16), Cls.ALU64: (8, 16, 32)}


@dataclass(frozen=True)
class Example:
    """A program. ``functions`` has the first slot and the bytes of stack of each function; ``context`` what it is run
    on.
    """

    insns: tuple[Insn, ...]
    functions: tuple[tuple[int, int], ...]
    context: bytes


def programs(isa: IsaRules = RELEASES["7.2"].isa) -> st.SearchStrategy[Example]:
    """Programs, drawn by Hypothesis."""
    return st.randoms(use_true_random=False).map(lambda random: random_program(random, isa))


def random_program(
    random: Random, isa: IsaRules = RELEASES["7.2"].isa, *, verifiable: bool = False
) -> Example:
    """A program, drawn from a source of random numbers.

    ``verifiable``: one that verifiers accept as a syscall program: accesses are aligned, the context is only loaded
    and stored at fixed offsets, every function is called, loops count in registers, nothing is called outside.
    """
    code = _Code()
    count = random.choice((1, 1, 1, 2, 3))
    functions = [_Function(random, isa, code, index, count, verifiable) for index in range(count)]
    for function in functions:
        function.write()
    starts = [code.places[("function", index)] for index in range(count)]
    context = bytes(random.getrandbits(8) for _ in range(ZONE)) + bytes(CONTEXT_SIZE - ZONE)
    depths = [function.depth for function in functions]
    return Example(code.insns(), tuple(zip(starts, depths, strict=True)), context)


class _Code:
    """Instructions whose jumps and calls name places that need not be known yet."""

    def __init__(self) -> None:
        self.places: dict[object, int] = {}
        self._insns: list[tuple[Insn, object]] = []
        self._slot = 0
        self._labels = 0

    def add(self, code: int, dst: int = 0, src: int = 0, off: int = 0, imm: int = 0, to: object = None) -> None:
        insn = Insn(code, dst, src, off, imm)
        self._insns.append((insn, to))
        self._slot += insn.slots

    def label(self) -> object:
        self._labels += 1
        return ("label", self._labels)

    def place(self, label: object) -> None:
        self.places[label] = self._slot

    def insns(self) -> tuple[Insn, ...]:
        insns, slot = [], 0
        for insn, to in self._insns:
            slot += insn.slots
            if to is not None:
                distance = self.places[to] - slot
                by_imm = insn.code in (CALL, GOTOL)
                insn = Insn(
                    insn.code,
                    insn.dst,
                    insn.src,
                    0 if by_imm else distance,
                    distance if by_imm else insn.imm,
                )
            insns.append(insn)
        return tuple(insns)


class _Function:
    """One function on its way: statements are drawn and written one after the other."""

    def __init__(
        self, random: Random, isa: IsaRules, code: _Code, index: int, count: int, verifiable: bool
    ) -> None:
        self.random, self.isa, self.code, self.index, self.count = random, isa, code, index, count
        self.verifiable = verifiable
        self.orders = isa.ordered and not verifiable
        """Whether loads and stores may be ordered: contexts are not for them."""
        self.depth = random.choice((0, 8, 32, 64, 128)) if index == 0 else random.choice((0, 16, 32))
        self.depth += KEPT + WINDOW
        registers = list(range(10))
        random.shuffle(registers)
        self.used = sorted(registers[: random.choice((3, 5, 10, 10))])
        """Registers that statements use."""
        self.free = set(self.used)
        """Those of them that may be written now: not the counters of loops."""
        self.loops = 0
        self.left = random.choice((3, 10, 25, 40)) if index == 0 else random.choice((2, 8))
        """Statements that may still be drawn."""

    # Choices --------------------------------------------------------------------------------------------------------

    def imm(self) -> int:
        random = self.random
        kind = random.randrange(3)
        return (random.choice(_IMMS), random.randint(-128, 127), random.randint(-(2**31), 2**31 - 1))[kind]

    def any(self) -> int:
        return self.random.choice(self.used)

    def writable(self, *but: int) -> int | None:
        registers = sorted(self.free.difference(but))
        return self.random.choice(registers) if registers else None

    # Beginning and end ----------------------------------------------------------------------------------------------

    def write(self) -> None:
        code = self.code
        code.place(("function", self.index))
        code.add(Cls.STX | Mode.MEM | Size.DW, 10, 1, -8)
        for offset in range(0, WINDOW, 8):
            code.add(Cls.ST | Mode.MEM | Size.DW, 10, 0, offset - self.depth, self.imm())
        for register in self.used:
            if not (self.index and 2 <= register <= 5):
                self.set(register)
        self.block(0)
        if self.verifiable and not self.index:
            for callee in range(1, self.count):
                self.call(callee)
        if 0 not in self.used:
            self.set(0)
        self.end()

    def set(self, register: int) -> None:
        """Give a register a number."""
        random, code = self.random, self.code
        kind = random.randrange(4)
        if kind == 0:
            value = random.choice((random.choice(_IMMS64), random.getrandbits(64)))
            code.add(LD_IMM64, register, imm=value)
        elif kind == 1:
            code.add(random.choice((Cls.ALU, Cls.ALU64)) | Alu.MOV, register, imm=self.imm())
        else:
            code.add(Cls.LDX | Mode.MEM | Size.DW, register, 10, self.offset(8) - self.depth)

    def offset(self, size: int, *, aligned: bool = False) -> int:
        """A place for so many bytes in the window or the zone."""
        return self.random.randrange(0, WINDOW - size + 1, size if aligned or self.verifiable else 1)

    def end(self) -> None:
        """What was computed goes to the context, or some of it to the caller's zone."""
        code = self.code
        if 1 in self.used:
            code.add(Cls.STX | Mode.MEM | Size.DW, 10, 1, -16)
        code.add(Cls.LDX | Mode.MEM | Size.DW, 1, 10, -8)
        if self.index:
            for register in self.used[-2:]:
                if register != 1:
                    code.add(Cls.STX | Mode.MEM | Size.DW, 1, register, self.offset(8))
        else:
            for register in self.used:
                if register != 1:
                    code.add(Cls.STX | Mode.MEM | Size.DW, 1, register, ZONE + 8 * register)
            if 1 in self.used:
                code.add(Cls.LDX | Mode.MEM | Size.DW, 2, 10, -16)
                code.add(Cls.STX | Mode.MEM | Size.DW, 1, 2, ZONE + 8)
            for offset in range(0, WINDOW, 8):
                code.add(Cls.LDX | Mode.MEM | Size.DW, 2, 10, offset - self.depth)
                code.add(Cls.STX | Mode.MEM | Size.DW, 1, 2, ZONE + 80 + offset)
        code.add(EXIT)

    # Statements -----------------------------------------------------------------------------------------------------

    def block(self, nesting: int) -> None:
        """Statements one after the other; those in a block count for the one around it."""
        random = self.random
        budget = self.left if nesting == 0 else random.randrange(0, 12)
        statements = [self.binary] * 4 + [self.shift, self.divide, self.unary, self.extend, self.fill]
        statements += [self.memory] * 4 + [self.atomic] * 2 + [self.skip]
        if nesting < 3:
            statements += [self.branch] * 2 + [self.loop]
        if not self.verifiable:
            statements += [self.call_helper]
        if self.index + 1 < self.count:
            statements += [self.call]
        for _ in range(budget):
            if self.left <= 0:
                return
            self.left -= 1
            statement = random.choice(statements)
            if statement in (self.branch, self.loop):
                statement(nesting)
            else:
                statement()

    def alu(self, op: int, imm: int, *, off: int = 0, imm64: int | None = None) -> None:
        """An operation on a register, by another one or by a number; ``imm64`` is the number for 64 bits."""
        dst = self.writable()
        if dst is None:
            return
        cls = self.random.choice((Cls.ALU, Cls.ALU64))
        if self.random.random() < 0.5:
            self.code.add(cls | op | X, dst, self.any(), off)
        else:
            self.code.add(cls | op, dst, 0, off, imm if cls == Cls.ALU or imm64 is None else imm64)

    def binary(self) -> None:
        self.alu(self.random.choice(_BINARY), self.imm())

    def shift(self) -> None:
        self.alu(self.random.choice(_SHIFTS), self.random.randrange(32), imm64=self.random.randrange(64))

    def divide(self) -> None:
        signed = self.isa.extended and self.random.random() < 0.5
        self.alu(self.random.choice((Alu.DIV, Alu.MOD)), self.imm() or 3, off=int(signed))

    def unary(self) -> None:
        dst = self.writable()
        if dst is None:
            return
        forms = [Cls.ALU | Alu.END, Cls.ALU | Alu.END | X, Cls.ALU | Alu.NEG, Cls.ALU64 | Alu.NEG]
        if self.isa.extended:
            forms.append(Cls.ALU64 | Alu.END)
        code = self.random.choice(forms)
        self.code.add(code, dst, imm=self.random.choice((16, 32, 64)) if code & 0xF0 == Alu.END else 0)

    def extend(self) -> None:
        dst = self.writable()
        if dst is None or not self.isa.extended:
            return
        cls = self.random.choice((Cls.ALU, Cls.ALU64))
        self.code.add(cls | Alu.MOV | X, dst, self.any(), self.random.choice(_WIDTHS[cls]))

    def fill(self) -> None:
        dst = self.writable()
        if dst is not None:
            self.set(dst)

    def skip(self) -> None:
        """A jump to the next instruction."""
        if self.isa.extended and self.random.random() < 0.5:
            self.code.add(GOTOL)
        else:
            self.code.add(GOTO)

    @contextmanager
    def place(self, size: int, *, atomic: bool = False, but: tuple[int, ...] = ()) -> Iterator[tuple[int, int]]:
        """A register and an offset that reach ``size`` bytes of the window or the zone; afterwards it is a number."""
        random, code = self.random, self.code
        is_context = self.verifiable and not self.index
        in_zone = random.random() < 0.3 and not (atomic and is_context)
        offset = self.offset(size, aligned=atomic)
        base = self.writable(*but)
        if base is None or (not in_zone and random.random() < 0.4):
            yield 10, offset - self.depth
            return
        if in_zone:
            code.add(Cls.LDX | Mode.MEM | Size.DW, base, 10, -8)
        else:
            code.add(Cls.ALU64 | Alu.MOV | X, base, 10)
            offset -= self.depth
        if random.random() < 0.6 and not (in_zone and is_context):
            moved = random.choice((1, -1, 8, 100, -4096, 32767 - 4096))
            code.add(Cls.ALU64 | Alu.ADD, base, imm=moved)
            offset -= moved
        yield base, offset
        self.set(base)

    def memory(self) -> None:
        random, code = self.random, self.code
        size = random.choice(list(Size))
        kind = random.randrange(int(self.verifiable and not self.isa.extended), 3)
        value = self.any()
        with self.place(size.bits // 8, but=(value,)) as (base, offset):
            if kind == 0:
                code.add(Cls.ST | Mode.MEM | size, base, 0, offset, self.imm())
            elif kind == 1:
                if self.orders and random.random() < 0.2 and offset % (size.bits // 8) == 0:
                    code.add(Cls.STX | Mode.ATOMIC | size, base, value, offset, Atomic.STORE_REL)
                else:
                    code.add(Cls.STX | Mode.MEM | size, base, value, offset)
            else:
                dst = self.writable()
                if dst is None:
                    return
                if self.orders and random.random() < 0.2 and offset % (size.bits // 8) == 0:
                    code.add(Cls.STX | Mode.ATOMIC | size, dst, base, offset, Atomic.LOAD_ACQ)
                else:
                    sign_extends = self.isa.extended and size != Size.DW and random.random() < 0.4
                    code.add(Cls.LDX | (Mode.MEMSX if sign_extends else Mode.MEM) | size, dst, base, offset)

    def atomic(self) -> None:
        op = self.random.choice(_ATOMICS)
        size = self.random.choice((Size.W, Size.DW))
        value = self.writable()
        if value is None or (op == Atomic.CMPXCHG and 0 not in self.free):
            return
        if op == Atomic.CMPXCHG and self.random.random() < 0.5:
            self.set(0)
        but = (value, 0) if op == Atomic.CMPXCHG else (value,)
        with self.place(size.bits // 8, atomic=True, but=but) as (base, offset):
            self.code.add(Cls.STX | Mode.ATOMIC | size, base, value, offset, op)

    def condition(self, to: object) -> None:
        cls = self.random.choice((Cls.JMP, Cls.JMP32))
        op = self.random.choice(_CONDITIONS)
        if self.random.random() < 0.5:
            self.code.add(cls | op | X, self.any(), self.any(), to=to)
        else:
            self.code.add(cls | op, self.any(), imm=self.imm(), to=to)

    def branch(self, nesting: int) -> None:
        otherwise, end = self.code.label(), self.code.label()
        self.condition(otherwise)
        self.block(nesting + 1)
        if self.random.random() < 0.5:
            self.code.add(GOTOL if self.isa.extended and self.random.random() < 0.5 else GOTO, to=end)
            self.code.place(otherwise)
            self.block(nesting + 1)
        else:
            self.code.place(otherwise)
        self.code.place(end)

    def loop(self, nesting: int) -> None:
        if self.loops == 2:
            return
        code, again = self.code, self.code.label()
        counters = [register for register in (6, 7, 8, 9) if register in self.free]
        counter = self.random.choice(counters) if counters and self.random.random() < 0.7 else None
        if self.verifiable and counter is None:
            return
        slot = -24 - 8 * self.loops
        self.loops += 1
        turns = self.random.randint(1, 4)
        if counter is None:
            code.add(Cls.ST | Mode.MEM | Size.DW, 10, 0, slot, turns)
        else:
            code.add(Cls.ALU64 | Alu.MOV, counter, imm=turns)
            self.free.discard(counter)
        code.place(again)
        self.block(nesting + 1)
        if counter is not None:
            code.add(Cls.ALU64 | Alu.ADD, counter, imm=-1)
            code.add(Cls.JMP | Jmp.JNE, counter, to=again)
            self.free.add(counter)
        else:
            register = self.writable()
            if register is not None:
                code.add(Cls.LDX | Mode.MEM | Size.DW, register, 10, slot)
                code.add(Cls.ALU64 | Alu.SUB, register, imm=1)
                code.add(Cls.STX | Mode.MEM | Size.DW, 10, register, slot)
                code.add(Cls.JMP | Jmp.JSGT, register, to=again)
        self.loops -= 1

    def call(self, callee: int | None = None) -> None:
        """A call of a later function, with numbers and the address of a zone as its arguments."""
        random, code = self.random, self.code
        for register in (2, 3, 4, 5):
            if register not in self.used:
                self.set(register)
        if random.random() < 0.5 and not self.verifiable:
            code.add(Cls.LDX | Mode.MEM | Size.DW, 1, 10, -8)
        else:
            code.add(Cls.ALU64 | Alu.MOV | X, 1, 10)
            code.add(Cls.ALU64 | Alu.ADD, 1, imm=-self.depth)
        if callee is None:
            callee = random.randrange(self.index + 1, self.count)
        code.add(CALL, 0, CallKind.SUBPROG, to=("function", callee))
        self.after_call()

    def call_helper(self) -> None:
        """A call out of the program, with numbers."""
        for register in (1, 2, 3, 4, 5):
            if register not in self.used:
                self.set(register)
        self.code.add(CALL, imm=MIX)
        self.after_call()

    def after_call(self) -> None:
        """The registers that calls do not keep are numbers again."""
        for register in (1, 2, 3, 4, 5):
            if register in self.used:
                self.set(register)
