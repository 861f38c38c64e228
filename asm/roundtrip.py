"""Comparison of an intended instruction, with numbers in place of symbols, with the decoded encoding."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from asm.encodings import CONDITION_ALIASES
from asm.registers import WIDTHS

if TYPE_CHECKING:
    from capstone import CsInsn

# capstone's X86_OP_* numbers; the module itself is imported only for decoding.
_REG, _IMM, _MEM = 1, 2, 3

SIZE_NAMES = {1: "byte", 2: "word", 4: "dword", 6: "fword", 8: "qword", 10: "xword", 16: "xmmword", 32: "ymmword"}

# Instructions whose operands are fixed: disassemblers print them, sources may omit them.
_STRINGS = {
    **{f"movs{suffix}": "{m} ptr [rdi], {m} ptr [rsi]" for suffix in "bwdq"},
    **{f"stos{suffix}": "{m} ptr [rdi], {r}" for suffix in "bwdq"},
    **{f"lods{suffix}": "{r}, {m} ptr [rsi]" for suffix in "bwdq"},
    **{f"scas{suffix}": "{r}, {m} ptr [rdi]" for suffix in "bwdq"},
    **{f"cmps{suffix}": "{m} ptr [rsi], {m} ptr [rdi]" for suffix in "bwdq"},
    **{f"ins{suffix}": "{m} ptr [rdi], dx" for suffix in "bwd"},
    **{f"outs{suffix}": "dx, {m} ptr [rsi]" for suffix in "bwd"},
}
_SUFFIXES = {"b": ("byte", "al"), "w": ("word", "ax"), "d": ("dword", "eax"), "q": ("qword", "rax")}
STRING_OPERANDS = {
    name: pattern.format(m=_SUFFIXES[name[-1]][0], r=_SUFFIXES[name[-1]][1]) for name, pattern in _STRINGS.items()
}

_ALIASES = {
    **{f"{stem}{alias}": f"{stem}{name}" for stem in ("j", "set", "cmov") for alias, name in CONDITION_ALIASES.items()},
    **{"movabs": "mov", "sal": "shl", "fwait": "wait", "xlat": "xlatb"},
}
# One encoding for both orders of operands.
_COMMUTATIVE = frozenset({"xchg", "test"})
_BRANCH_RELATIVE_GROUP = 7


class MeantMemory(NamedTuple):
    """A memory operand with its displacement; size in bytes, 0 is any."""

    size: int
    segment: str
    base: str
    indexed: str
    scale: int
    displacement: int

    def text(self, displacement: str | None = None) -> str:
        """Intel syntax; `displacement`, with its sign, replaces the number."""
        size = f"{SIZE_NAMES[self.size]} ptr " if self.size else ""
        segment = f"{self.segment}:" if self.segment else ""
        parts = [self.base] if self.base else []
        if self.indexed:
            parts.append(self.indexed if self.scale == 1 and self.base else f"{self.indexed}*{self.scale}")
        inside = " + ".join(parts)
        if displacement is None and (self.displacement or not inside):
            displacement = f"{'-' if self.displacement < 0 else '+'} {abs(self.displacement):#x}"
        if displacement:
            inside = f"{inside} {displacement}" if inside else displacement.removeprefix("+ ").replace("- ", "-")
        return f"{size}{segment}[{inside}]"


MeantOperand = str | int | MeantMemory


class Meant(NamedTuple):
    """An instruction with numbers in place of symbols: registers are names, immediates numbers."""

    mnemonic: str
    operands: tuple[MeantOperand, ...]

    def text(self) -> str:
        """Intel syntax, numbers in hexadecimal."""
        return f"{self.mnemonic} {', '.join(map(operand_text, self.operands))}".rstrip()


def operand_text(operand: MeantOperand) -> str:
    """One operand in Intel syntax."""
    if isinstance(operand, str):
        return operand
    return f"{operand:#x}" if isinstance(operand, int) else operand.text()


def signed(value: int, bits: int) -> int:
    """Signed number congruent to `value` modulo 2**bits."""
    half = 1 << (bits - 1)
    return ((value + half) & ((1 << bits) - 1)) - half


def fits(value: int, bits: int) -> bool:
    """True if the number fits `bits` bits, signed or unsigned."""
    return -(1 << (bits - 1)) <= value < (1 << bits)


def signed_immediates(operands: tuple[MeantOperand, ...], mnemonic: str) -> tuple[MeantOperand, ...]:
    """Immediates as signed numbers of the destination's width, for the short sign-extended forms."""
    width = 0
    if operands and isinstance(operands[0], str):
        width = WIDTHS.get(operands[0], 0)
    elif operands and isinstance(operands[0], MeantMemory):
        width = operands[0].size * 8
    elif mnemonic == "push":
        width = 64
    if width not in (16, 32, 64):
        return operands
    return tuple(
        signed(operand, width) if isinstance(operand, int) and fits(operand, width) else operand for operand in operands
    )


def _canonical(mnemonic: str) -> str:
    prefix, _, name = mnemonic.rpartition(" ")
    name = _ALIASES.get(name, name)
    if prefix == "repe" and name[:4] not in ("cmps", "scas"):
        prefix = "rep"
    return f"{prefix} {name}" if prefix else name


def agrees(meant: Meant, insn: CsInsn) -> bool:
    """True if a decoded instruction is the intended one."""
    mnemonic = _canonical(meant.mnemonic)
    if mnemonic != _canonical(insn.mnemonic) or insn.group(_BRANCH_RELATIVE_GROUP):
        return False
    name = mnemonic.rpartition(" ")[2]
    if not meant.operands and name in STRING_OPERANDS:
        return bool(insn.op_str == STRING_OPERANDS[name])
    if _operands_agree(meant.operands, insn, name):
        return True
    return name in _COMMUTATIVE and _operands_agree(meant.operands[::-1], insn, name)


def _operands_agree(operands: tuple[MeantOperand, ...], insn: CsInsn, name: str) -> bool:
    decoded = insn.operands
    if len(decoded) != len(operands):
        return False
    for meant, got in zip(operands, decoded, strict=True):
        if isinstance(meant, str):
            if got.type != _REG or insn.reg_name(got.reg) != meant:
                return False
        elif isinstance(meant, int):
            bits = 64 if name == "push" else got.size * 8
            if got.type != _IMM or got.size * 8 < bits or not fits(meant, bits):
                # An unsigned 64-bit number may mean the sign-extended immediate.
                return False
            if (meant - got.imm) & ((1 << bits) - 1):
                return False
        else:
            if got.type != _MEM or (meant.size and got.size != meant.size):
                return False
            mem = got.mem
            registers = tuple(insn.reg_name(number) or "" for number in (mem.segment, mem.base, mem.index))
            if registers != (meant.segment, meant.base, meant.indexed):
                return False
            bits = WIDTHS.get(meant.base or meant.indexed, 64)
            if (meant.indexed and mem.scale != meant.scale) or (mem.disp - meant.displacement) & ((1 << bits) - 1):
                return False
    return True
