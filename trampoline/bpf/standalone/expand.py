"""Replacement of instructions by several, with jumps and calls adjusted (bpf_patch_insn_data)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trampoline.bpf.errors import BytecodeError
from trampoline.bpf.isa.insn import GOTOL, LD_IMM64, Insn, places

Patch = Callable[[Insn], "Sequence[Insn] | None"]
"""Replacement of an instruction; None keeps it."""


@dataclass(frozen=True, slots=True)
class Expanded:
    """Instructions after replacement. ``slots``: the new slot of each old slot, and of the end."""

    insns: tuple[Insn, ...]
    slots: dict[int, int]


def expand(insns: Sequence[Insn], patch: Patch) -> Expanded:
    """Replace each instruction by the result of ``patch``; jumps to it lead to the first instruction of its
    replacement.

    Jumps within a replacement are not adjusted; a replaced jump or call must not be part of its replacement. Raises
    BytecodeError for a jump without a target, or whose distance no longer fits (the kernel's -ERANGE).
    """
    made = [patch(insn) for insn in insns]
    old = places(insns)
    new = [0]
    for insn, replacement in zip(insns, made, strict=True):
        new.append(new[-1] + (insn.slots if replacement is None else sum(each.slots for each in replacement)))
    slots = dict(zip(old, new, strict=True))
    result: list[Insn] = []
    for slot, insn, replacement in zip(old, insns, made, strict=False):
        if replacement is None:
            result.append(_moved(insn, slot, slots))
        else:
            result += replacement
    return Expanded(tuple(result), slots)


def _moved(insn: Insn, slot: int, slots: dict[int, int]) -> Insn:
    distance = insn.function if insn.jump is None else insn.jump
    if distance is None:
        return insn
    goal = slots.get(slot + 1 + distance)
    if goal is None:
        raise BytecodeError(f"no instruction at slot {slot + 1 + distance}, its target", slot)
    distance = goal - slots[slot] - 1
    if insn.jump is None or insn.code == GOTOL:
        imm = distance % (1 << 32) if insn.code == LD_IMM64 else distance
        return Insn(insn.code, insn.dst, insn.src, insn.off, imm)
    if not -0x8000 <= distance < 0x8000:
        raise BytecodeError(f"a jump of {distance} slots does not fit", slot)
    return Insn(insn.code, insn.dst, insn.src, distance, insn.imm)
