"""Branches relative to the next instruction: short and long forms."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from types import MappingProxyType

from asm.encodings import CONDITION_ALIASES, CONDITIONS, MASK, condition_code, displacement


@dataclass(frozen=True, slots=True)
class BranchForm:
    """Opcodes of a branch with an 8-bit and with a 32-bit displacement; empty if the form does not exist."""

    mnemonic: str
    short: bytes
    long: bytes

    def size(self, long: bool) -> int:
        """Size of a form in bytes."""
        return len(self.long) + 4 if long else len(self.short) + 1

    def encode(self, at: int, target: int, long: bool) -> bytes:
        """Encodes the branch for the address `at`. Raises DisplacementError."""
        if long:
            return self.long + struct.pack("<i", displacement(at + len(self.long) + 4, target, 32, at))
        return self.short + struct.pack("<b", displacement(at + len(self.short) + 1, target, 8, at))

    def reaches(self, at: int, target: int) -> bool:
        """True if the short form at `at` reaches the target."""
        distance = (target - at - len(self.short) - 1 + 128) & MASK
        return distance < 256


def _forms() -> dict[str, BranchForm]:
    forms = [
        BranchForm("call", b"", b"\xe8"),
        BranchForm("jmp", b"\xeb", b"\xe9"),
        BranchForm("xbegin", b"", b"\xc7\xf8"),
        BranchForm("loopne", b"\xe0", b""),
        BranchForm("loope", b"\xe1", b""),
        BranchForm("loop", b"\xe2", b""),
        BranchForm("jrcxz", b"\xe3", b""),
        BranchForm("jecxz", b"\x67\xe3", b""),
    ]
    for cc in CONDITIONS:
        code = condition_code(cc)
        forms.append(BranchForm(f"j{cc}", bytes((0x70 | code,)), bytes((0x0F, 0x80 | code))))
    table = {form.mnemonic: form for form in forms}
    table.update({f"j{alias}": table[f"j{cc}"] for alias, cc in CONDITION_ALIASES.items()})
    table.update(loopnz=table["loopne"], loopz=table["loope"])
    return table


BRANCHES = MappingProxyType(_forms())
