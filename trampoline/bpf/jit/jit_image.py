"""What the JIT gives: code and what belongs to its places. Offsets are bytes from the image's first."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reloc:
    """Four bytes at ``offset`` that hold the distance from their end to ``target``."""

    offset: int
    target: int
    name: str = ""


@dataclass(frozen=True, slots=True)
class ExtableEntry:
    """What is done when the instruction at ``offset`` faults (``struct exception_table_entry`` of type BPF).

    ``fixup`` holds how many bytes to go on behind, and which of pt_regs' fields to clear; ``data`` the entry's type.
    """

    offset: int
    fixup: int
    data: int


@dataclass(frozen=True, slots=True)
class PokePlace:
    """Where a direct tail call is patched: ``bypass`` jumps over it while its slot is empty, ``target`` jumps to the
    program.
    """

    poke: int
    slot: int
    bypass: int
    target: int
    end: int


@dataclass(frozen=True, slots=True)
class JitImage:
    """A compiled function. ``offsets`` has the place of each slot of the function, and of its end."""

    address: int
    code: bytes
    offsets: tuple[int, ...]
    extable: tuple[ExtableEntry, ...] = ()
    pokes: tuple[PokePlace, ...] = ()
    relocs: tuple[Reloc, ...] = ()

    def __len__(self) -> int:
        return len(self.code)
