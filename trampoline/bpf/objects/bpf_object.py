"""A compiled BPF object: clang's ELF file as programs and maps for a kernel."""

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path

from emu.elf.reader import SymbolType
from trampoline.bpf.btf.btf import Btf, BtfKind
from trampoline.bpf.btf.ext import CoreRecord
from trampoline.bpf.errors import BtfError, ObjectError
from trampoline.bpf.objects.elf_sections import ObjectFunction, Sources, instruction_starts, read_sources
from trampoline.bpf.objects.externs import ConfigValue, ExternKind, externs_of
from trampoline.bpf.objects.global_data import data_maps
from trampoline.bpf.objects.map_definitions import Definition, map_definitions
from trampoline.bpf.objects.relocations import R_BPF_64_64, R_BPF_64_ABS64, R_BPF_NONE, ObjectCode
from trampoline.bpf.objects.resolve import Resolution, ResolveKernel
from trampoline.bpf.objects.section_names import SectionKind, section_kind
from trampoline.bpf.program import BpfProgram, MapSpec

_POINTER = 8
_OF_VALUES = (R_BPF_64_ABS64, R_BPF_64_64)  # compilers before LLVM 13 used one type for both


@dataclass(frozen=True, slots=True)
class ObjectProgram:
    """A program of the object, not yet resolved."""

    name: str
    section: str
    kind: SectionKind
    function: ObjectFunction

    @property
    def autoload(self) -> bool:
        """True if it is loaded without being named; False for sections with a question mark."""
        return self.kind.autoload


@dataclass(frozen=True, slots=True)
class GlobalVariable:
    """A global variable: ``offset`` and ``size`` in bytes, within the value of the map named ``map``.

    ``type_id`` is its type in the object's BTF, 0 if not stated.
    """

    name: str
    map: str
    offset: int
    size: int
    type_id: int


class BpfObject:
    """A BPF object file: ``BpfObject.open("prog.o").resolve(Btf.read("vmlinux.btf"))``.

    Everything that does not depend on a kernel is checked on opening.
    """

    def __init__(self, sources: Sources, name: str) -> None:
        self.name = name
        """The file's name up to its first dot; part of the names of its global data maps."""
        self.license = sources.license
        self.btf = sources.btf
        self._sources = sources
        definitions = tuple(self._definitions())
        self._data = data_maps(sources, name)
        specs = [definition.spec for definition in definitions] + list(self._data.values())
        self.maps: dict[str, MapSpec] = {spec.name: spec for spec in specs}
        """Maps that the object defines, then the maps of its global data, by name."""
        if len(self.maps) != len(specs):
            raise ObjectError("two maps have the same name", section=".maps")
        self.data: dict[str, MapSpec] = {sources.elf.sections[at].name: spec for at, spec in self._data.items()}
        """Maps of global data by the section's name: ``.data``, ``.rodata``, ``.bss``."""
        self._externs = externs_of(sources.elf.symbols, sources.btf)
        self._code = ObjectCode(sources, {one.offset: one.spec.name for one in definitions}, self._externs)
        self._core = self._core_records()
        self.entries = tuple(self._entries())
        """Every program, in the file's order."""
        self.initial_slots = self._initial_slots(definitions)
        """Initial elements of a map of maps or programs: its name → index → name of the map or program."""
        self.variables = {variable.name: variable for variable in self._variables()}
        """Global variables by name."""

    @classmethod
    def open(cls, source: str | PathLike[str] | bytes, name: str = "") -> "BpfObject":
        """Read the object from a path or from bytes; ``name`` overrides the file's name.

        Raises ObjectError if the file is not such an object, is damaged, or needs an unsupported feature.
        """
        if not isinstance(source, bytes):
            name = name or Path(fspath(source)).name
        name = name or "object"
        with _named(name):
            return cls(read_sources(source, name), Path(name).name.partition(".")[0])

    @property
    def programs(self) -> tuple[BpfProgram, ...]:
        """The programs with autoload, resolved without a kernel: targets have no BTF ids yet.

        Raises ObjectError if one needs a kernel's types or symbols.
        """
        return self.resolve(None)

    @property
    def symbols(self) -> tuple[str, ...]:
        """Kernel symbols without a type whose addresses the programs need."""
        return tuple(one.name for one in self._externs.values() if one.kind is ExternKind.ADDRESS)

    @property
    def needs_configuration(self) -> bool:
        """Whether it has ``.kconfig`` variables."""
        return any(one.kind is ExternKind.CONFIG for one in self._externs.values())

    def resolve(
        self,
        kernel_btf: Btf | None,
        *,
        names: Collection[str] | None = None,
        kconfig: Mapping[str, ConfigValue] | None = None,
        ksyms: Mapping[str, int] | None = None,
        targets: Mapping[str, str] | None = None,
        attach_to: Mapping[str, BpfProgram] | None = None,
        function_id: Callable[[str], int | None] | None = None,
    ) -> tuple[BpfProgram, ...]:
        """The programs resolved against a kernel with these types.

        ``names``: the programs to resolve (by default those with autoload). ``kconfig``: values of ``CONFIG_…`` and of
        ``LINUX_KERNEL_VERSION``. ``ksyms``: addresses of symbols without BTF. ``targets``: by program, the function
        that replaces the section's. ``attach_to``: by program, the program whose function is the target.
        ``function_id``: looks up the BTF id of a target before ``kernel_btf`` is searched.

        Raises ObjectError for a relocation, extern or target that the kernel cannot satisfy, and for damaged types.
        """
        with _named(self._sources.elf.name):
            chosen = self._chosen(names)
            kernel = ResolveKernel(kernel_btf, dict(kconfig or {}), dict(ksyms or {}), function_id)
            resolution = Resolution(
                self._sources, self._code, self._core, self._externs, self.maps, self._data, kernel, self.name
            )
            return tuple(
                resolution.program(
                    entry.function,
                    entry.kind,
                    target=(targets or {}).get(entry.name, entry.kind.target),
                    attach_to=(attach_to or {}).get(entry.name),
                )
                for entry in chosen
            )

    def _chosen(self, names: Collection[str] | None) -> list[ObjectProgram]:
        if names is None:
            return [entry for entry in self.entries if entry.autoload]
        known = {entry.name for entry in self.entries}
        if missing := sorted(set(names) - known):
            raise ObjectError(f"no program {missing[0]}")
        return [entry for entry in self.entries if entry.name in names]

    def _definitions(self) -> Iterator[Definition]:
        section = self._sources.maps
        if section is None:
            return
        if self.btf is None:
            raise ObjectError("no .BTF section; map definitions need it", section=section.name)
        yield from map_definitions(self.btf, section.size)

    def _entries(self) -> Iterator[ObjectProgram]:
        seen = set()
        for function in self._sources.functions:
            if not function.is_entry:
                continue
            if function.name in seen:
                raise ObjectError(f"two programs are called {function.name}", section=function.section.name)
            seen.add(function.name)
            yield ObjectProgram(function.name, function.section.name, section_kind(function.section.name), function)

    def _core_records(self) -> dict[tuple[int, int], list[CoreRecord]]:
        """CO-RE relocations by section and slot."""
        records: dict[tuple[int, int], list[CoreRecord]] = {}
        if self._sources.ext is None:
            return records
        by_name = {function.section.name: function.section for function in self._sources.functions}
        starts = instruction_starts(self._sources.functions)
        for name, found in self._sources.ext.core.items():
            section = by_name.get(name)
            for record in found:
                if section is None or (section.index, record.slot) not in starts:
                    raise ObjectError(
                        f"a CO-RE relocation at slot {record.slot} is not at an instruction", section=name
                    )
                records.setdefault((section.index, record.slot), []).append(record)
        return records

    def _initial_slots(self, definitions: tuple[Definition, ...]) -> dict[str, dict[int, str]]:
        section = self._sources.maps
        slots: dict[str, dict[int, str]] = {}
        placed = sorted(definitions, key=lambda one: one.offset)
        maps = {one.offset: one.spec.name for one in definitions}
        programs = {entry.name for entry in self.entries}
        for entry in self._sources.relocations.get(section.index, ()) if section is not None else ():
            if entry.type == R_BPF_NONE:
                continue
            before = bisect_right(placed, entry.offset, key=lambda one: one.offset)
            outer = placed[before - 1] if before else None
            at = -1 if outer is None or outer.values is None else entry.offset - outer.offset - outer.values
            if outer is None or not 0 <= at < outer.size or at % _POINTER or entry.type not in _OF_VALUES:
                reason = f"a relocation at {entry.offset:#x} is not at a value of a map"
                raise ObjectError(reason, section=".maps")
            symbol = self._sources.symbol(entry)
            if outer.spec.inner is not None:
                known = maps.get(symbol.value) if self._sources.section(symbol) is section else None
            else:
                known = symbol.name if symbol.name in programs else None
            if known is None:
                what = "map" if outer.spec.inner is not None else "program"
                raise ObjectError(f"{symbol.name or 'a value'} of map {outer.spec.name} is no {what}", section=".maps")
            slots.setdefault(outer.spec.name, {})[at // _POINTER] = known
        return slots

    def _variables(self) -> Iterator[GlobalVariable]:
        types: dict[tuple[str, str], int] = {}
        if self.btf is not None:
            for type_id in range(1, len(self.btf)):
                if self.btf.kind(type_id) is BtfKind.DATASEC:
                    for one in self.btf.variables(type_id):
                        variable = self.btf.type(one.type_id)
                        types[self.btf.type(type_id).name, variable.name] = variable.type_id
        for symbol in self._sources.elf.symbols:
            if symbol.type == SymbolType.OBJECT and symbol.section in self._data:
                section = self._sources.elf.sections[symbol.section]
                if symbol.value + symbol.size > section.size:
                    raise ObjectError(f"{symbol.name} reaches beyond the section", section=section.name)
                type_id = types.get((section.name, symbol.name), 0)
                yield GlobalVariable(symbol.name, self._data[symbol.section].name, symbol.value, symbol.size, type_id)


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Add the file's name to errors raised inside the block."""
    try:
        yield
    except ObjectError as error:
        raise ObjectError(error.reason, section=error.section, object_name=name) from None
    except BtfError as error:
        raise ObjectError(str(error), section=".BTF", object_name=name) from None
