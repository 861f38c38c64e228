"""An eBPF instruction as a value.

The set is that of RFC 9669 plus the kernels' additions: may_goto, load_acquire and store_release, gotox,
addr_space_cast, stack arguments through r11. Positions in a program are counted in slots of 8 bytes; LD_IMM64 is one
value of two slots.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import accumulate

from trampoline.bpf.errors import BytecodeError

MAX_REG = 10  # the frame pointer
STACK_ARGS_REG = 11  # base of arguments on the stack
MAX_REWRITTEN_REG = 12  # used by the verifier and the JIT only


class Cls(IntEnum):
    """Class of an instruction: bits 0 to 2 of its code."""

    LD = 0
    LDX = 1
    ST = 2
    STX = 3
    ALU = 4
    JMP = 5
    JMP32 = 6
    ALU64 = 7


# The code of LD, LDX, ST and STX:
#
#    7 6 5   4 3   2 1 0
#   +------+------+-------+
#   | mode | size | class |
#   +------+------+-------+
class Size(IntEnum):
    """Width of a memory access: bits 3 and 4."""

    W = 0x00
    H = 0x08
    B = 0x10
    DW = 0x18

    @property
    def bits(self) -> int:
        """Width in bits."""
        return {Size.B: 8, Size.H: 16, Size.W: 32, Size.DW: 64}[self]


class Mode(IntEnum):
    """Addressing mode: bits 5 to 7. Modes after ATOMIC are created by the verifier and share values with others."""

    IMM = 0x00
    ABS = 0x20
    IND = 0x40
    MEM = 0x60
    MEMSX = 0x80
    ATOMIC = 0xC0
    PROBE_MEM = 0x20
    PROBE_MEMSX = 0x40
    PROBE_MEM32 = 0xA0
    PROBE_MEM32SX = 0xC0
    PROBE_ATOMIC = 0xE0


# The code of ALU, ALU64, JMP and JMP32:
#
#    7 6 5 4    3      2 1 0
#   +--------+--------+-------+
#   |   op   | source | class |   source: 0 the immediate (K), 1 a register (X)
#   +--------+--------+-------+
X = 0x08


class Alu(IntEnum):
    """Operation of ALU and ALU64."""

    ADD = 0x00
    SUB = 0x10
    MUL = 0x20
    DIV = 0x30  # off 1: signed
    OR = 0x40
    AND = 0x50
    LSH = 0x60
    RSH = 0x70
    NEG = 0x80
    MOD = 0x90  # off 1: signed
    XOR = 0xA0
    MOV = 0xB0  # off 8, 16, 32: sign-extended from that many bits
    ARSH = 0xC0
    END = 0xD0  # ALU: to little endian (K), to big endian (X); ALU64: swapped; imm is the width in bits


class Jmp(IntEnum):
    """Operation of JMP and JMP32."""

    JA = 0x00
    JEQ = 0x10
    JGT = 0x20
    JGE = 0x30
    JSET = 0x40
    JNE = 0x50
    JSGT = 0x60
    JSGE = 0x70
    CALL = 0x80
    EXIT = 0x90
    JLT = 0xA0
    JLE = 0xB0
    JSLT = 0xC0
    JSLE = 0xD0
    JCOND = 0xE0
    TAIL_CALL = 0xF0  # created by the verifier


class Imm64(IntEnum):
    """Kind of LD_IMM64's immediate: its src field."""

    VALUE = 0
    MAP_FD = 1
    MAP_VALUE = 2
    BTF_ID = 3
    FUNC = 4
    MAP_IDX = 5
    MAP_IDX_VALUE = 6


class CallKind(IntEnum):
    """Kind of a call's immediate: its src field."""

    HELPER = 0
    SUBPROG = 1
    KFUNC = 2


class Atomic(IntEnum):
    """Operation of STX | ATOMIC: its imm field."""

    ADD = 0x00
    OR = 0x40
    AND = 0x50
    XOR = 0xA0
    FETCH_ADD = 0x01
    FETCH_OR = 0x41
    FETCH_AND = 0x51
    FETCH_XOR = 0xA1
    XCHG = 0xE1
    CMPXCHG = 0xF1
    LOAD_ACQ = 0x100
    STORE_REL = 0x110


# Whole codes of operations with a single code.
LD_IMM64 = Cls.LD | Mode.IMM | Size.DW
GOTO = Cls.JMP | Jmp.JA
GOTOX = Cls.JMP | Jmp.JA | X
GOTOL = Cls.JMP32 | Jmp.JA
CALL = Cls.JMP | Jmp.CALL
EXIT = Cls.JMP | Jmp.EXIT
MAY_GOTO = Cls.JMP | Jmp.JCOND
TAIL_CALL = Cls.JMP | Jmp.TAIL_CALL
NOSPEC = Cls.ST | 0xC0
ADDR_SPACE_CAST = 1  # off of a 64-bit move
ADDR_PERCPU = -1  # off of a 64-bit move
ZEXT = 1  # imm of a 32-bit move


@dataclass(frozen=True, slots=True)
class Insn:
    """One instruction: ``off`` is signed 16 bits, ``imm`` signed 32 bits, and 0 to 2**64 - 1 in LD_IMM64.

    It can hold any fields that fit, so that instructions which a kernel rejects can be written too; ``forms.fault``
    says if they are an instruction. Raises BytecodeError for a field that does not fit.
    """

    code: int
    dst: int = 0
    src: int = 0
    off: int = 0
    imm: int = 0

    def __post_init__(self) -> None:
        low, high = (0, 1 << 64) if self.code == LD_IMM64 else (-(1 << 31), 1 << 31)
        if not (
            0 <= self.code < 0x100
            and 0 <= self.dst < 16
            and 0 <= self.src < 16
            and -0x8000 <= self.off < 0x8000
            and low <= self.imm < high
        ):
            raise BytecodeError(f"a field does not fit: {self!r}")

    @property
    def cls(self) -> Cls:
        """Instruction class."""
        return Cls(self.code & 7)

    @property
    def op(self) -> int:
        """Operation (``Alu``, ``Jmp``), for the classes that have one."""
        return self.code & 0xF0

    @property
    def size(self) -> Size:
        """Width of the access, for the classes that have one."""
        return Size(self.code & 0x18)

    @property
    def mode(self) -> int:
        """``Mode``, for the classes that have one."""
        return self.code & 0xE0

    @property
    def from_register(self) -> bool:
        """True if the second operand is a register (X); for ALU and jump classes."""
        return bool(self.code & X)

    @property
    def slots(self) -> int:
        """Number of 8-byte slots that it takes."""
        return 2 if self.code == LD_IMM64 else 1

    @property
    def jump(self) -> int | None:
        """Jump distance in slots from the next instruction; None for non-jumps and for jumps through a register."""
        if self.cls not in (Cls.JMP, Cls.JMP32) or self.op in (Jmp.CALL, Jmp.EXIT, Jmp.TAIL_CALL):
            return None
        if self.code == GOTOX:
            return None
        return self.imm if self.code == GOTOL else self.off

    @property
    def function(self) -> int | None:
        """Distance of the function called or referenced, in slots from the slot after its first; None for others."""
        if self.code == CALL and self.src == CallKind.SUBPROG:
            return self.imm
        if self.code == LD_IMM64 and self.src == Imm64.FUNC and not self.imm >> 32:
            return (self.imm ^ 1 << 31) - (1 << 31)
        return None


def places(insns: Sequence[Insn]) -> list[int]:
    """Slot of each instruction, and of the program's end."""
    return list(accumulate((insn.slots for insn in insns), initial=0))
