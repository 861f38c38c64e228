"""Decoder: bytes to instructions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from asm.encodings import MASK
from asm.engines import capstone
from asm.errors import AsmError
from asm.image import Image, Line

_RIP = re.compile(r"\[rip(?: ([+-]) (\w+))?\]")


@dataclass(frozen=True, slots=True)
class Instruction:
    """A decoded instruction: `size` bytes at the guest address; `[rip + X]` names the address X, as in a source."""

    address: int
    size: int
    code: bytes
    mnemonic: str
    operands: str

    @property
    def text(self) -> str:
        """Mnemonic and operands."""
        return f"{self.mnemonic} {self.operands}" if self.operands else self.mnemonic


def _decode(code: bytes, address: int) -> Iterator[tuple[int, int, str, str]]:
    reached = 0
    for insn in capstone().disasm_lite(code, address):
        reached += insn[1]
        yield insn
    if reached != len(code):
        rest = code[reached : reached + 15]
        raise AsmError(f"no instruction at {(address + reached) & MASK:#x}: {rest.hex()}")


def _effective(operands: str, after: int) -> str:
    """Operands with the address of a rip-relative one instead of its displacement."""

    def address(match: re.Match[str]) -> str:
        shift = int(match[2], 0) if match[2] else 0
        return f"[rip + {(after + (-shift if match[1] == '-' else shift)) & MASK:#x}]"

    return _RIP.sub(address, operands) if "[rip" in operands else operands


def decode(code: bytes, address: int) -> list[Instruction]:
    """The instructions of `code` placed at the guest address. Raises AsmError at undecodable bytes."""
    return [
        Instruction(at, size, code[at - address : at - address + size], mnemonic, _effective(operands, at + size))
        for at, size, mnemonic, operands in _decode(code, address)
    ]


def image_of(code: bytes, address: int, name: str) -> Image:
    """Image of given bytes, without labels, comments or phases. Raises AsmError at undecodable bytes."""
    lines = tuple(
        Line(insn.address - address, insn.size, insn.text, "", None) for insn in decode(code, address)
    )
    return Image(address, bytes(code), {}, lines, name)


def instruction_starts(code: bytes, address: int) -> list[int]:
    """The guest address of every instruction. Raises AsmError at undecodable bytes."""
    return [insn[0] for insn in _decode(code, address)]


def instruction_count(code: bytes) -> int:
    """Number of instructions in the bytes. Raises AsmError at undecodable bytes."""
    return sum(1 for _ in _decode(code, 0))
