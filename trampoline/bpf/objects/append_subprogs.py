"""Layout of one program: its entry function, then each function that it calls, once, as libbpf appends them."""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

from trampoline.bpf.btf.btf import Btf
from trampoline.bpf.btf.ext import BtfExt, FuncRecord, LineRecord
from trampoline.bpf.errors import BtfError, ObjectError
from trampoline.bpf.isa.insn import LD_IMM64, Insn
from trampoline.bpf.objects.elf_sections import ObjectFunction
from trampoline.bpf.objects.relocations import FunctionUse, ObjectCode
from trampoline.bpf.program import FuncInfo, LineInfo

MAX_PROGRAM = 1_000_000
"""Maximum size of a program in slots (BPF_COMPLEXITY_LIMIT_INSNS)."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A function in a program, and the slot where it starts."""

    function: ObjectFunction
    slot: int


def lay_out(code: ObjectCode, entry: ObjectFunction) -> dict[ObjectFunction, Placed]:
    """Positions of a program's functions: a callee follows all functions found before it, in the order of first use.

    Raises ObjectError for a program of more than ``MAX_PROGRAM`` slots.
    """
    placed = {entry: Placed(entry, 0)}
    end = entry.slots
    pending = [_callees(code, entry)]
    while pending:
        callee = next(pending[-1], None)
        if callee is None:
            pending.pop()
        elif callee not in placed:
            placed[callee] = Placed(callee, end)
            end += callee.slots
            if end > MAX_PROGRAM:
                raise ObjectError(f"program {entry.name} has more than {MAX_PROGRAM} slots", section=entry.section.name)
            pending.append(_callees(code, callee))
    return placed


def _callees(code: ObjectCode, function: ObjectFunction) -> Iterator[ObjectFunction]:
    return (use.function for _, use in sorted(code.uses[function].items()) if isinstance(use, FunctionUse))


def distance(insn: Insn, slot: int, target: int) -> int:
    """The immediate of an instruction at ``slot`` that calls, or takes the address of, the function at ``target``."""
    imm = target - slot - 1
    return imm % (1 << 32) if insn.code == LD_IMM64 else imm


def func_infos(ext: BtfExt | None, placed: dict[ObjectFunction, Placed]) -> tuple[FuncInfo, ...]:
    """Types of a program's functions; empty if any function's type is missing."""
    if ext is None:
        return ()
    found = []
    for place in placed.values():
        records = ext.funcs.get(place.function.section.name, ())
        at = bisect_left(records, place.function.start, key=_slot)
        if at == len(records) or records[at].slot != place.function.start:
            return ()
        found.append(FuncInfo(place.slot, records[at].type_id))
    return tuple(found)


def line_infos(ext: BtfExt | None, btf: Btf | None, placed: dict[ObjectFunction, Placed]) -> tuple[LineInfo, ...]:
    """Source lines of a program's instructions. Raises ObjectError for invalid string offsets."""
    if ext is None or btf is None:
        return ()
    found = []
    for place in placed.values():
        function = place.function
        records = ext.lines.get(function.section.name, ())
        first = bisect_left(records, function.start, key=_slot)
        for record in records[first : bisect_left(records, function.start + function.slots, key=_slot)]:
            found.append(_line(btf, record, place.slot + record.slot - function.start))
    return tuple(found)


def _slot(record: FuncRecord | LineRecord) -> int:
    return record.slot


def _line(btf: Btf, record: LineRecord, slot: int) -> LineInfo:
    try:
        return LineInfo(slot, btf.string(record.file), record.line, record.column, btf.string(record.text))
    except BtfError as error:
        raise ObjectError(str(error), section=".BTF.ext") from None
