"""Where a function's frame is at each of its instructions: found by following its stack operations.

The canonical frame address (CFA) is the stack pointer before the call that entered the function: the return address
lies 8 bytes below it. "Call Frame Information" in the DWARF standard.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from asm.decode import Instruction, decode
from asm.errors import AsmError

CALLEE_SAVED = ("rbx", "rbp", "r12", "r13", "r14", "r15")
_ENDS = frozenset({"ret", "retq", "iretq", "lretq", "ud2", "int3", "hlt", "jmp"})
_STACK_WORD = re.compile(r"qword ptr \[(rsp|rbp)(?: ([+-]) (\w+))?\]")
_NUMBER = re.compile(r"-?(?:0x[0-9a-f]+|\d+)")
_WORD = 8


@dataclass(frozen=True, slots=True)
class Row:
    """How to leave the function from an instruction on: the CFA is ``base`` plus ``offset`` bytes.

    ``saved``: for callee-saved registers, how many bytes below the CFA the caller's value is. ``base`` is empty where
    the frame is not known.
    """

    base: str
    offset: int
    saved: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class _State:
    depth: int | None = _WORD
    """CFA - rsp; None: not known."""
    frame: int | None = None
    """CFA - rbp where rbp points into the frame."""
    saved: tuple[tuple[str, int], ...] = ()
    changed: frozenset[str] = frozenset()
    """Callee-saved registers that no longer hold what the caller left in them."""

    @property
    def row(self) -> Row:
        if self.frame is not None:
            return Row("rbp", self.frame, self.saved)
        return Row("rsp", self.depth, self.saved) if self.depth is not None else Row("", 0)

    def moved(self, by: int) -> "_State":
        """The stack pointer goes down so many bytes."""
        return self if self.depth is None else replace(self, depth=self.depth + by)

    def without_caller(self) -> "_State":
        """The return address is overwritten: the next one, a word above it, is what is left."""
        up = _WORD
        return replace(
            self,
            depth=None if self.depth is None else self.depth + up,
            frame=None if self.frame is None else self.frame + up,
            saved=tuple((name, below + up) for name, below in self.saved),
        )

    def stored(self, name: str, below: int | None) -> "_State":
        """A register is stored so many bytes below the CFA: kept in mind where it is the caller's value."""
        if below is None or name not in CALLEE_SAVED or name in self.changed or name in dict(self.saved):
            return self
        return replace(self, saved=tuple(sorted((*self.saved, (name, below)))))

    def loaded(self, name: str, below: int | None) -> "_State":
        """A register gets what is so many bytes below the CFA, or something else: None."""
        state = self
        if name == "rbp":
            state = replace(state, frame=None)
        if name not in CALLEE_SAVED:
            return state
        saved = dict(state.saved)
        if below is not None and saved.get(name) == below:
            del saved[name]
            return replace(state, saved=tuple(sorted(saved.items())), changed=state.changed - {name})
        return replace(state, changed=state.changed | {name})


def unwind_rows(code: bytes, address: int, replaced_at: int | None = None) -> list[tuple[int, Row]]:
    """The rows of a function placed at an address, each from an offset in bytes on; the first is from 0 on.

    ``replaced_at``: the instruction that overwrites the return address, where one does (``StackNames``). Where bytes
    can't be decoded, and where nothing leads, the row before goes on.
    """
    try:
        instructions = decode(code, address)
    except AsmError:
        return [(0, _State().row)]
    states = _follow(instructions, replaced_at)
    rows: list[tuple[int, Row]] = []
    last = _State().row
    for instruction in instructions:
        state = states.get(instruction.address)
        row = last if state is None else state.row
        if not rows or row != last:
            rows.append((instruction.address - address, row))
        last = row
    return rows or [(0, last)]


def _follow(instructions: list[Instruction], replaced_at: int | None) -> dict[int, _State]:
    """The state before each instruction that can be come to."""
    by_address = {instruction.address: instruction for instruction in instructions}
    states: dict[int, _State] = {}
    if not instructions:
        return states
    todo = [(instructions[0].address, _State())]
    unvisited = iter(instructions)
    while True:
        while todo:
            at, state = todo.pop()
            if at in states or at not in by_address:
                continue
            states[at] = state
            if at == replaced_at:
                todo.append((at + by_address[at].size, state.without_caller()))
            else:
                todo += _successors(by_address[at], state)
        # Behind a jump that is a nop as yet (a static key's): out of line, in the frame that the function has then.
        left = next((one.address for one in unvisited if one.address not in states and _is_code(one)), None)
        if left is None:
            return states
        todo = [(left, _deepest(states))]


def _is_code(instruction: Instruction) -> bool:
    return instruction.mnemonic not in ("int3", "nop")


def _deepest(states: Mapping[int, _State]) -> _State:
    return max(states.values(), key=lambda state: (state.frame is not None, state.depth or 0))


def _successors(instruction: Instruction, state: _State) -> Iterator[tuple[int, _State]]:
    mnemonic, operands = instruction.mnemonic, instruction.operands
    target = int(operands, 0) if _NUMBER.fullmatch(operands) else None
    after = instruction.address + instruction.size
    if mnemonic == "call":
        yield after, state
        if target is not None:
            # A call inside the function: it leaves a return address that the function itself takes off.
            yield target, state.moved(_WORD)
        return
    if mnemonic.startswith("j") and target is not None:
        yield target, state
    if mnemonic not in _ENDS:
        yield after, _effect(mnemonic, operands, state)


def _effect(mnemonic: str, operands: str, state: _State) -> _State:
    """What an instruction does to the frame."""
    first, _, second = (part.strip() for part in operands.partition(","))
    match mnemonic:
        case "push" | "pushfq":
            state = state.moved(_WORD)
            return state.stored(first, state.depth)
        case "pop":
            return state.loaded(first, state.depth).moved(-_WORD)
        case "popfq":
            return state.moved(-_WORD)
        case "leave":
            depth = state.frame
            return replace(state, depth=depth).loaded("rbp", depth).moved(-_WORD)
        case "sub" | "add" if first == "rsp":
            if not _NUMBER.fullmatch(second):
                return replace(state, depth=None)
            return state.moved(int(second, 0) if mnemonic == "sub" else -int(second, 0))
        case "mov" | "lea" if first == "rsp":
            return replace(state, depth=_place(second, state) if mnemonic == "lea" else _pointer(second, state))
        case "mov" | "lea" if first == "rbp":
            frame = _place(second, state) if mnemonic == "lea" else _pointer(second, state)
            if frame is not None:
                return replace(state.loaded("rbp", None), frame=frame)
            return state.loaded("rbp", _place(second, state) if mnemonic == "mov" else None)
        case "mov" if _STACK_WORD.fullmatch(first):
            return state.stored(second, _place(first, state))
        case "mov" if _STACK_WORD.fullmatch(second):
            return state.loaded(first, _place(second, state))
        case "cmp" | "test" | "bt" | "prefetcht0":
            return state
    if first == "rsp":
        return replace(state, depth=None)
    return state.loaded(_whole(first), None)


def _pointer(operand: str, state: _State) -> int | None:
    """CFA - operand, for one that is the stack or frame pointer."""
    return {"rsp": state.depth, "rbp": state.frame}.get(operand)


def _place(operand: str, state: _State) -> int | None:
    """How many bytes below the CFA a memory operand is; None where that is not known."""
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
    """The 64-bit register that a name is a part of."""
    return _WHOLE.get(name, name)
