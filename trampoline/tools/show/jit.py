"""Compiled programs: bytecode and machine code side by side."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from asm import decode
from trampoline.bpf.errors import TrampolineError
from trampoline.bpf.install.installer import Installed
from trampoline.bpf.install.listing import Listing
from trampoline.bpf.isa.insn import CALL, LD_IMM64, CallKind, Imm64, Insn, places
from trampoline.bpf.isa.text import format_insn
from trampoline.lab import Lab, Workload, open_workload

LEFT = 44
"""Width of the bytecode column."""


@dataclass(frozen=True, slots=True)
class JitRow:
    """One eBPF instruction as text (empty for the JIT's prologue and epilogue) and its machine code."""

    slot: int | None
    insn: str
    source: str
    code: bytes
    address: int


@dataclass(frozen=True, slots=True)
class Compiled:
    """One function of a program, as in guest memory."""

    name: str
    address: int
    rows: tuple[JitRow, ...]
    names: Mapping[int, str]
    """Names of the functions that it may call, by address."""

    @property
    def code(self) -> bytes:
        """The machine code."""
        return b"".join(row.code for row in self.rows)

    def text(self) -> str:
        """One line per machine instruction, and a source line at each change."""
        lines, source = [f"{self.name}: {len(self.code)} bytes at {self.address:#x}"], ""
        for row in self.rows:
            if row.source and row.source != source:
                source = row.source
                lines.append(f"; {source}")
            left = "" if row.slot is None else f"{row.slot:4}: {row.insn}"
            for number, made in enumerate(decode(row.code, row.address)):
                right = f"{made.address:x}: {made.mnemonic} {self._named(made.operands)}"
                lines.append(f"{left if not number else '':{LEFT}} {right}".rstrip())
            if not row.code:
                lines.append(left)
        return "\n".join(lines)

    def _named(self, operands: str) -> str:
        """Operands, with the name of a function in place of its address."""
        try:
            return self.names.get(int(operands, 16), operands)
        except ValueError:
            return operands

    def to_json(self) -> dict[str, Any]:
        """The function as plain values."""
        return {
            "name": self.name,
            "address": self.address,
            "code": self.code.hex(),
            "instructions": [
                {
                    "slot": row.slot,
                    "insn": row.insn or None,
                    "source": row.source,
                    "address": row.address,
                    "code": row.code.hex(),
                }
                for row in self.rows
            ],
        }


def compiled_object(workload: Workload) -> list[Compiled]:
    """The functions of an object's programs, as loaded. Raises what ``open_workload`` raises."""
    with open_workload(replace(workload, calls=(), live=True)) as ready:
        loaded, lab = ready.loaded, ready.lab
        if loaded is None or not loaded.programs:
            raise TrampolineError(f"{workload.target} has no program")
        programs = [lab.installer.installed[prog.address] for prog in loaded.programs.values()]
        return [function for installed in programs for function in compiled(lab, installed)]


def compiled(lab: Lab, installed: Installed) -> list[Compiled]:
    """The functions of an installed program, the main one first."""
    names = {symbol.address: symbol.name for symbol in lab.kernel.kallsyms}
    own = [one.name for one in installed.functions]

    def text(insn: Insn) -> str:
        """A rewritten instruction: names of called functions, meanings of map addresses."""
        if insn.code == CALL and insn.src == CallKind.SUBPROG:
            return f"call {own[insn.off]}"
        if insn.code == CALL and (name := names.get(lab.runtime.call_base + insn.imm)):
            return f"call {name}"
        if insn.code == LD_IMM64 and insn.src != Imm64.FUNC:
            return format_insn(Insn(LD_IMM64, insn.dst, imm=insn.imm))
        return format_insn(insn)

    return [Compiled(one.name, one.image.address, tuple(_rows(one, text)), names) for one in installed.functions]


def _rows(listing: Listing, text: Callable[[Insn], str]) -> Iterator[JitRow]:
    code, start, offsets = listing.image.code, listing.image.address, listing.image.offsets
    slots = places(listing.func.insns)
    yield JitRow(None, "", "", code[: offsets[0]], start)
    for slot, insn in zip(slots, listing.func.insns, strict=False):
        first, after = offsets[slot], offsets[slot + insn.slots]
        line = listing.line_of(slot)
        source = f"{line}: {line.text.strip()}" if line is not None else ""
        yield JitRow(slot, text(insn), source, code[first:after], start + first)
    if offsets[slots[-1]] < len(code):
        yield JitRow(None, "", "", code[offsets[slots[-1]] :], start + offsets[slots[-1]])
