"""What the JIT makes of a program: bytecode and machine code side by side."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asm import decode
from trampoline.bpf.insn import Insn, places
from trampoline.bpf.text import format_insn
from trampoline.btf import Btf
from trampoline.errors import TrampolineError
from trampoline.install import Installed
from trampoline.install.listing import Listing
from trampoline.lab import Tracing
from trampoline.objects import BpfObject

LEFT = 44
"""Columns of the bytecode."""


@dataclass(frozen=True, slots=True)
class Row:
    """One eBPF instruction (None: what the JIT puts in front and behind) and its machine code."""

    slot: int | None
    insn: Insn | None
    source: str
    code: bytes
    address: int


@dataclass(frozen=True, slots=True)
class Compiled:
    """One function of a program, as it stands in guest memory."""

    name: str
    address: int
    rows: tuple[Row, ...]

    @property
    def code(self) -> bytes:
        """All of its machine code."""
        return b"".join(row.code for row in self.rows)

    def text(self) -> str:
        """A line for each machine instruction; the source where it changes."""
        lines, source = [f"{self.name}: {len(self.code)} bytes at {self.address:#x}"], ""
        for row in self.rows:
            if row.source and row.source != source:
                source = row.source
                lines.append(f"; {source}")
            left = "" if row.insn is None else f"{row.slot:4}: {format_insn(row.insn)}"
            right = [f"{i.address:x}: {i.mnemonic} {i.operands}".rstrip() for i in decode(row.code, row.address)]
            for number, text in enumerate(right or [""]):
                lines.append(f"{left if not number else '':{LEFT}} {text}".rstrip())
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "name": self.name,
            "address": self.address,
            "code": self.code.hex(),
            "instructions": [
                {
                    "slot": row.slot,
                    "insn": None if row.insn is None else format_insn(row.insn),
                    "source": row.source,
                    "address": row.address,
                    "code": row.code.hex(),
                }
                for row in self.rows
            ],
        }


def compiled_object(
    path: Path, *, flavour: str = "7.2", kernel_btf: Path | None = None, names: list[str] | None = None
) -> list[Compiled]:
    """The functions of an object's programs, as a kernel of this release would have them. Raises what
    ``Tracing.open`` raises.
    """
    obj = BpfObject.open(path)
    with Tracing(flavour, btf=None if kernel_btf is None else Btf.read(kernel_btf)) as lab:
        lab.load_testmod()
        with lab.open(obj, names=names) as loaded:
            if not loaded.programs:
                raise TrampolineError(f"{path} has no program")
            return [
                function
                for prog in loaded.programs.values()
                for function in compiled(lab.installer.installed[prog.address])
            ]


def compiled(installed: Installed) -> list[Compiled]:
    """The functions of an installed program, the main one first."""
    return [Compiled(one.name, one.image.address, tuple(_rows(one))) for one in installed.functions]


def _rows(listing: Listing) -> list[Row]:
    code, start, offsets = listing.image.code, listing.image.address, listing.image.offsets
    slots = places(listing.func.insns)
    rows = [Row(None, None, "", code[: offsets[0]], start)]
    for slot, insn in zip(slots, listing.func.insns, strict=False):
        first, after = offsets[slot], offsets[slot + insn.slots]
        line = listing.line_of(slot)
        source = f"{line}: {line.text.strip()}" if line is not None else ""
        rows.append(Row(slot, insn, source, code[first:after], start + first))
    if offsets[slots[-1]] < len(code):
        rows.append(Row(None, None, "", code[offsets[slots[-1]] :], start + offsets[slots[-1]]))
    return rows
