"""Position of a function's frame at each of its instructions, found by following its stack operations.

The canonical frame address (CFA) is the stack pointer before the call that entered the function: the return address
is 8 bytes below it. "Call Frame Information" in the DWARF standard.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from asm.decode import Instruction, decode
from asm.errors import AsmError
from asm.image import Image

CALLEE_SAVED = ("rbx", "rbp", "r12", "r13", "r14", "r15")
_ENDS = frozenset({"ret", "retq", "iretq", "lretq", "ud2", "int3", "hlt", "jmp"})
_STACK_WORD = re.compile(r"qword ptr \[(rsp|rbp)(?: ([+-]) (\w+))?\]")
_NUMBER = re.compile(r"-?(?:0x[0-9a-f]+|\d+)")
_WORD = 8


@dataclass(frozen=True, slots=True)
class UnwindRow:
    """Unwinding rule from one instruction on: the CFA is ``base`` plus ``offset`` bytes.

    ``saved``: distance in bytes of the caller's value below the CFA, by callee-saved register. ``base`` is empty if the
    frame is not known.
    """

    base: str
    offset: int
    saved: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class StackState:
    """State of the stack before an instruction. ``rsp`` and ``rbp``: distance in bytes below the CFA; None if it is not
    known, or rbp does not point into the frame.
    """

    rsp: int | None = _WORD
    rbp: int | None = None
    saved: tuple[tuple[str, int], ...] = ()
    """As in UnwindRow."""
    changed: frozenset[str] = frozenset()
    """Callee-saved registers that no longer hold the caller's value."""
    pushed: tuple[tuple[int, int], ...] = ()
    """Words on the stack: distance from the CFA (negative), and the address of the push instruction."""
    replaced: bool = False
    """True if the return value has replaced the return address: the next return address is one word above it."""

    def frame(self, rsp: int, rbp: int) -> int | None:
        """The CFA, computed from the two registers."""
        if self.rsp is not None:
            return rsp + self.rsp
        return rbp + self.rbp if self.rbp is not None else None

    @property
    def row(self) -> UnwindRow:
        """Unwinding rule; uses the return address that is left, if one was dropped."""
        up = _WORD if self.replaced else 0
        if self.rbp is not None:
            base, offset = "rbp", self.rbp + up
        elif self.rsp is not None:
            up = max(up, _WORD - self.rsp)
            base, offset = "rsp", self.rsp + up
        else:
            return UnwindRow("", 0)
        return UnwindRow(base, offset, tuple((name, below + up) for name, below in self.saved))

    def at(self, rsp: int | None) -> "StackState":
        """The same state with another stack pointer: words below it are no longer part of the stack."""
        kept = self.pushed if rsp is None else tuple(word for word in self.pushed if word[0] >= -rsp)
        return replace(self, rsp=rsp, pushed=kept)

    def after_push(self, address: int) -> "StackState":
        """After the push instruction at an address."""
        if self.rsp is None:
            return self
        below = self.rsp + _WORD
        return replace(self, rsp=below, pushed=(*self.pushed, (-below, address)))

    def stored(self, name: str, below: int | None) -> "StackState":
        """State after a register is stored ``below`` bytes below the CFA: recorded if it holds the caller's value."""
        if below is None or name not in CALLEE_SAVED or name in self.changed or name in dict(self.saved):
            return self
        return replace(self, saved=tuple(sorted((*self.saved, (name, below)))))

    def loaded(self, name: str, below: int | None) -> "StackState":
        """State after a register is loaded from ``below`` bytes below the CFA, or with another value: None."""
        state = self
        if name == "rbp":
            state = replace(state, rbp=None)
        if name not in CALLEE_SAVED:
            return state
        saved = dict(state.saved)
        if below is not None and saved.get(name) == below:
            del saved[name]
            return replace(state, saved=tuple(sorted(saved.items())), changed=state.changed - {name})
        return replace(state, changed=state.changed | {name})


def unwind_rows(code: bytes, address: int, replaced_at: int | None = None) -> list[tuple[int, UnwindRow]]:
    """Rows of a function placed at a guest address, with the offset in bytes from which each is valid; the first is 0.

    ``replaced_at``: the instruction that overwrites the return address, if there is one (``StackNames``). For bytes
    that can't be decoded or are unreachable, the row before stays valid.
    """
    try:
        instructions = decode(code, address)
    except AsmError:
        return [(0, StackState().row)]
    states = _follow(instructions, replaced_at)
    rows: list[tuple[int, UnwindRow]] = []
    last = StackState().row
    for instruction in instructions:
        state = states.get(instruction.address)
        row = last if state is None else state.row
        if not rows or row != last:
            rows.append((instruction.address - address, row))
        last = row
    return rows or [(0, last)]


def stack_state(image: Image, address: int, replaced_at: int | None = None) -> StackState | None:
    """State before an instruction of an image; None if it is not known."""
    return _states(image.code, image.address, replaced_at).get(address)


@lru_cache(maxsize=512)
def _states(code: bytes, address: int, replaced_at: int | None) -> dict[int, StackState]:
    try:
        return _follow(decode(code, address), replaced_at)
    except AsmError:
        return {}


def _follow(instructions: list[Instruction], replaced_at: int | None) -> dict[int, StackState]:
    """State before each reachable instruction."""
    by_address = {instruction.address: instruction for instruction in instructions}
    states: dict[int, StackState] = {}
    if not instructions:
        return states
    todo = [(instructions[0].address, StackState())]
    unvisited = iter(instructions)
    while True:
        while todo:
            at, state = todo.pop()
            if at in states or at not in by_address:
                continue
            states[at] = state
            for after, then in _successors(by_address[at], state):
                todo.append((after, replace(then, replaced=True) if at == replaced_at else then))
        # After a jump that is still a nop (a static key's): the out-of-line code, with the frame at the jump.
        left = next((one.address for one in unvisited if one.address not in states and _is_code(one)), None)
        if left is None:
            return states
        todo = [(left, _deepest(states))]


def _is_code(instruction: Instruction) -> bool:
    return instruction.mnemonic not in ("int3", "nop")


def _deepest(states: Mapping[int, StackState]) -> StackState:
    return max(states.values(), key=lambda state: (state.rbp is not None, state.rsp or 0))


def _successors(instruction: Instruction, state: StackState) -> Iterator[tuple[int, StackState]]:
    mnemonic, operands = instruction.mnemonic, instruction.operands
    target = int(operands, 0) if _NUMBER.fullmatch(operands) else None
    after = instruction.address + instruction.size
    if mnemonic == "call":
        yield after, state
        if target is not None:
            # A call inside the function: it pushes a return address that the function itself removes.
            yield target, state.after_push(instruction.address)
        return
    if mnemonic.startswith("j") and target is not None:
        yield target, state
    if mnemonic not in _ENDS:
        yield after, _effect(instruction, state)


def _effect(instruction: Instruction, state: StackState) -> StackState:
    """State of the frame after an instruction."""
    mnemonic, operands = instruction.mnemonic, instruction.operands
    first, _, second = (part.strip() for part in operands.partition(","))
    match mnemonic:
        case "push" | "pushfq":
            state = state.after_push(instruction.address)
            return state.stored(first, state.rsp)
        case "pop" | "popfq":
            return state.loaded(first, state.rsp).at(None if state.rsp is None else state.rsp - _WORD)
        case "leave":
            return state.loaded("rbp", state.rbp).at(None if state.rbp is None else state.rbp - _WORD)
        case "sub" | "add" if first == "rsp":
            if state.rsp is None or not _NUMBER.fullmatch(second):
                return state.at(None)
            return state.at(state.rsp + (int(second, 0) if mnemonic == "sub" else -int(second, 0)))
        case "mov" | "lea" if first == "rsp":
            return state.at(_place(second, state) if mnemonic == "lea" else _pointer(second, state))
        case "mov" | "lea" if first == "rbp":
            frame = _place(second, state) if mnemonic == "lea" else _pointer(second, state)
            if frame is not None:
                return replace(state.loaded("rbp", None), rbp=frame)
            return state.loaded("rbp", _place(second, state) if mnemonic == "mov" else None)
        case "mov" if _STACK_WORD.fullmatch(first):
            return state.stored(second, _place(first, state))
        case "mov" if _STACK_WORD.fullmatch(second):
            return state.loaded(first, _place(second, state))
        case "cmp" | "test" | "bt" | "prefetcht0":
            return state
    if first == "rsp":
        return state.at(None)
    return state.loaded(_whole(first), None)


def _pointer(operand: str, state: StackState) -> int | None:
    """CFA minus an operand that is the stack or frame pointer."""
    return {"rsp": state.rsp, "rbp": state.rbp}.get(operand)


def _place(operand: str, state: StackState) -> int | None:
    """Distance of a memory operand below the CFA in bytes; None if it is not known."""
    found = _STACK_WORD.fullmatch(operand if "ptr" in operand else f"qword ptr {operand}")
    if found is None:
        return None
    base = _pointer(found[1], state)
    shift = int(found[3], 0) if found[3] else 0
    return None if base is None else base + (shift if found[2] == "-" else -shift)


_WHOLE = {
    part: whole
    for whole, parts in {
        "rbx": ("ebx", "bx", "bl", "bh"),
        "rbp": ("ebp", "bp", "bpl"),
        **{f"r{number}": tuple(f"r{number}{size}" for size in "dwb") for number in range(12, 16)},
    }.items()
    for part in parts
}


def _whole(name: str) -> str:
    """The 64-bit register that a register name is a part of."""
    return _WHOLE.get(name, name)
