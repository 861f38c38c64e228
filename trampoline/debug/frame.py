"""The stack frame of a function, slot by slot."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Slot:
    """Eight bytes of a stack. ``offset``: from rbp where the function has a frame pointer, else from rsp.

    ``words`` says what the value is, where that is known: a symbol, an object.
    """

    address: int
    offset: int
    name: str
    value: int
    words: str = ""


@dataclass(frozen=True, slots=True)
class Frame:
    """One function's part of the stack, highest address first. ``base``: the register that offsets count from."""

    function: str
    base: str
    slots: tuple[Slot, ...]

    def __getitem__(self, name: str) -> Slot:
        """The slot of a name. KeyError."""
        found = next((slot for slot in self.slots if slot.name == name), None)
        if found is None:
            raise KeyError(name)
        return found
