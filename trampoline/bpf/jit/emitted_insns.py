"""Code before its address is known: one piece per instruction."""

from dataclasses import dataclass, field

from trampoline.bpf.jit.jit_image import ExtableEntry


@dataclass(frozen=True, slots=True)
class Branch:
    """A jump within the function, after a piece's code, of two bytes or five (six with a condition)."""

    target: int
    """Target slot; ``TO_EXIT``: the first exit."""
    condition: int | None = None
    """Opcode of the two-byte form; None for an unconditional jump."""


TO_EXIT = -1


@dataclass(frozen=True, slots=True)
class Distance:
    """Four bytes at ``offset`` of a piece that receive the distance from their end to an address."""

    offset: int
    target: int
    name: str = ""


@dataclass(frozen=True, slots=True)
class PokeOffsets:
    """Offsets in a piece at which a direct tail call is patched."""

    poke: int
    bypass: int
    target: int


@dataclass(slots=True)
class EmittedInsn:
    """Code of one instruction. Offsets count from its first byte."""

    code: bytes
    branch: Branch | None = None
    distances: tuple[Distance, ...] = ()
    fault: ExtableEntry | None = None
    poke: PokeOffsets | None = None
    is_exit: bool = False
    """The first exit, the target of other exits."""


@dataclass(slots=True)
class Pieces:
    """The pieces of a function by slot; None for second slots of LD_IMM64."""

    prologue: bytes
    items: list[EmittedInsn | None] = field(default_factory=list)
