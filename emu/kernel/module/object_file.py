"""A compiled relocatable object as a value: the parts that a kernel keeps when it loads a module."""

from dataclasses import dataclass
from enum import IntEnum

from emu.elf.errors import ElfError

FENTRY = "__fentry__"
"""The symbol that `-pg -mfentry` calls at the start of every function."""


class ModuleError(ElfError):
    """An object that can't be used, or can't be linked; fields as in ElfError."""


class RelocationType(IntEnum):
    """The relocations of the kernel's code model (psABI names and numbers)."""

    R_X86_64_64 = 1
    R_X86_64_PC32 = 2
    R_X86_64_PLT32 = 4
    R_X86_64_32 = 10
    R_X86_64_32S = 11

    @property
    def size(self) -> int:
        """Number of bytes written."""
        return 8 if self is RelocationType.R_X86_64_64 else 4

    @property
    def is_relative(self) -> bool:
        """True if the value is a distance from the relocated place."""
        return self in (RelocationType.R_X86_64_PC32, RelocationType.R_X86_64_PLT32)


@dataclass(frozen=True, slots=True)
class ObjectSymbol:
    """A symbol: `section` is the index of its section in the object, None if undefined or absolute.

    `offset` and `size` are bytes; of an absolute symbol, `offset` is its value.
    """

    name: str
    section: int | None
    offset: int
    size: int
    is_function: bool
    is_global: bool
    is_weak: bool
    is_absolute: bool

    @property
    def is_undefined(self) -> bool:
        """True if another object or the kernel has to provide it."""
        return self.section is None and not self.is_absolute


@dataclass(frozen=True, slots=True)
class Relocation:
    """At `offset` bytes into its section: the address of `symbol` plus `addend`, written as `type` says."""

    offset: int
    type: RelocationType
    symbol: ObjectSymbol
    addend: int


@dataclass(frozen=True, slots=True)
class Section:
    """An allocatable section. `content` is empty for .bss, whose `size` bytes are zero; `alignment` is in bytes."""

    index: int
    name: str
    content: bytes
    size: int
    alignment: int
    executable: bool
    writable: bool
    relocations: tuple[Relocation, ...]


@dataclass(frozen=True, slots=True)
class FentrySite:
    """The five bytes at `offset` into `section` where `function` can be patched: `call __fentry__`, or nop5 already."""

    function: ObjectSymbol
    section: int
    offset: int


@dataclass(frozen=True, slots=True)
class ObjectFile:
    """The parts of a relocatable object that a kernel keeps. Sections keep their order and index."""

    name: str
    sections: tuple[Section, ...]
    symbols: tuple[ObjectSymbol, ...]
    fentry_sites: tuple[FentrySite, ...]

    def section(self, index: int) -> Section:
        """The section with this index in the object; KeyError if it was not kept."""
        for section in self.sections:
            if section.index == index:
                return section
        raise KeyError(index)

    @property
    def functions(self) -> tuple[ObjectSymbol, ...]:
        """The functions defined here, in order of section and offset."""
        found = (symbol for symbol in self.symbols if symbol.is_function and symbol.section is not None)
        return tuple(sorted(found, key=lambda symbol: (symbol.section or 0, symbol.offset, symbol.name)))

    @property
    def undefined(self) -> tuple[str, ...]:
        """Names of symbols that its code or data needs from elsewhere, without `__fentry__`, sorted."""
        needed = (reloc.symbol for section in self.sections for reloc in section.relocations)
        return tuple(sorted({symbol.name for symbol in needed if symbol.is_undefined and symbol.name != FENTRY}))
