"""Output of the JIT: code and its tables. Offsets are bytes from the image's start."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reloc:
    """Four bytes at ``offset`` that contain the distance from their end to ``target``."""

    offset: int
    target: int
    name: str = ""


@dataclass(frozen=True, slots=True)
class ExtableEntry:
    """Fault handling of the instruction at ``offset`` (``struct exception_table_entry`` of type BPF).

    ``fixup``: the number of bytes to skip, and the field of pt_regs to clear; ``data``: the entry's type.
    """

    offset: int
    fixup: int
    data: int


@dataclass(frozen=True, slots=True)
class PokePlace:
    """Patched jumps of a direct tail call: ``bypass`` jumps over it while its slot is empty, ``target`` jumps to the
    program.
    """

    poke: int
    slot: int
    bypass: int
    target: int
    end: int


@dataclass(frozen=True, slots=True)
class JitImage:
    """A compiled function. ``offsets``: offset of each slot of the function, and of its end."""

    address: int
    code: bytes
    offsets: tuple[int, ...]
    extable: tuple[ExtableEntry, ...] = ()
    pokes: tuple[PokePlace, ...] = ()
    relocs: tuple[Reloc, ...] = ()

    def __len__(self) -> int:
        return len(self.code)
