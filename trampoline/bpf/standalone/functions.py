"""The functions of a program: their start slots, and checks that each is complete (check_subprogs)."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from trampoline.bpf.errors import BytecodeError
from trampoline.bpf.isa.insn import EXIT, GOTO, GOTOL, Insn, places


@dataclass(frozen=True, slots=True)
class FunctionCode:
    """One function: ``start`` is its first slot in the program, ``end`` the slot after its last."""

    start: int
    end: int
    insns: tuple[Insn, ...]


def functions_of(insns: Sequence[Insn]) -> tuple[FunctionCode, ...]:
    """The functions of a program in order, the main one first: a function starts at slot 0 and at each call target.

    Raises BytecodeError with the slot if the program is empty, a call or jump has no instruction as target, a jump
    leaves its function, or control can run past a function's last instruction.
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
                raise BytecodeError(f"no function at slot {start}", slot)
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
                raise BytecodeError(f"no instruction at slot {goal}, its target", slot)
        last = slot
        slot += insn.slots
    if function.insns[-1].code not in (EXIT, GOTO, GOTOL):
        raise BytecodeError("the last instruction of a function is neither exit nor a jump", last)
