"""The functions of a program: where each begins, and that each is whole (check_subprogs)."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from trampoline.bpf.errors import BytecodeError
from trampoline.bpf.isa.insn import EXIT, GOTO, GOTOL, Insn, places


@dataclass(frozen=True, slots=True)
class FunctionCode:
    """One function: ``start`` is the slot of the program at which it begins, ``end`` the slot behind it."""

    start: int
    end: int
    insns: tuple[Insn, ...]


def functions_of(insns: Sequence[Insn]) -> tuple[FunctionCode, ...]:
    """The functions of a program in order, the main one first: a function begins at slot 0 and wherever one is called.

    BytecodeError with the slot where the program is empty, a call or jump goes to no instruction, a jump leaves its
    function, or a function's last instruction lets control run out of it.
    """
    if not insns:
        raise BytecodeError("the program has no instructions")
    slots = places(insns)
    known = set(slots[:-1])
    starts = {0}
    for slot, insn in zip(slots, insns, strict=False):
        if insn.function is not None:
            start = slot + 1 + insn.function
            if start not in known:
                raise BytecodeError(f"there is no function at slot {start}", slot)
            starts.add(start)
    bounds = [*sorted(starts), slots[-1]]
    position = {slot: index for index, slot in enumerate(slots)}
    functions = []
    for start, end in pairwise(bounds):
        function = FunctionCode(start, end, tuple(insns[position[start] : position[end]]))
        _check(function, known)
        functions.append(function)
    return tuple(functions)


def _check(function: FunctionCode, known: set[int]) -> None:
    slot = last = function.start
    for insn in function.insns:
        if insn.jump is not None:
            goal = slot + 1 + insn.jump
            if not function.start <= goal < function.end:
                raise BytecodeError(f"the jump to slot {goal} leaves its function", slot)
            if goal not in known:
                raise BytecodeError(f"there is no instruction at slot {goal}, where it jumps", slot)
        last = slot
        slot += insn.slots
    if function.insns[-1].code not in (EXIT, GOTO, GOTOL):
        raise BytecodeError("the last instruction of a function is neither exit nor a jump", last)
