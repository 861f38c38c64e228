"""Code before its place is known: one piece for each instruction."""

from dataclasses import dataclass, field

from trampoline.bpf.jit.jit_image import ExtableEntry


@dataclass(frozen=True, slots=True)
class Branch:
    """A jump within the function that follows a piece's code, in two bytes or in five (six with a condition)."""

    target: int
    """Slot that it goes to; ``TO_EXIT``: the first exit."""
    condition: int | None = None
    """Opcode of the two-byte form, None for a jump without condition."""


TO_EXIT = -1


@dataclass(frozen=True, slots=True)
class Distance:
    """Four bytes at ``offset`` of a piece that become the distance from their end to an address."""

    offset: int
    target: int
    name: str = ""


@dataclass(frozen=True, slots=True)
class PokeOffsets:
    """Where in a piece a direct tail call is patched."""

    poke: int
    bypass: int
    target: int


@dataclass(slots=True)
class EmittedInsn:
    """What one instruction becomes. Offsets count from its first byte."""

    code: bytes
    branch: Branch | None = None
    distances: tuple[Distance, ...] = ()
    fault: ExtableEntry | None = None
    poke: PokeOffsets | None = None
    is_exit: bool = False
    """The first exit, which others jump to."""


@dataclass(slots=True)
class Pieces:
    """The pieces of a function by slot; None at second slots of LD_IMM64."""

    prologue: bytes
    items: list[EmittedInsn | None] = field(default_factory=list)
