"""Operands of instructions: relocations of code, read once and checked, not yet resolved."""

from collections.abc import Mapping
from dataclasses import dataclass

from emu.elf.reader import ElfRelocation, ElfSymbol
from trampoline.bpf.errors import ObjectError
from trampoline.bpf.isa.codec import SLOT_SIZE
from trampoline.bpf.isa.insn import CALL, LD_IMM64, CallKind, Imm64, Insn
from trampoline.bpf.objects.elf_sections import ObjectFunction, Sources
from trampoline.bpf.objects.externs import Extern, ExternKind

R_BPF_NONE, R_BPF_64_64, R_BPF_64_ABS64, R_BPF_64_ABS32, R_BPF_64_NODYLD32, R_BPF_64_32 = 0, 1, 2, 3, 4, 10


@dataclass(frozen=True, slots=True)
class MapUse:
    """The map with this name itself."""

    name: str


@dataclass(frozen=True, slots=True)
class DataUse:
    """The address of a global variable: a byte offset into the section with this index."""

    section: int
    offset: int


@dataclass(frozen=True, slots=True)
class FunctionUse:
    """A call of a function, or its address."""

    function: ObjectFunction


@dataclass(frozen=True, slots=True)
class ExternUse:
    """A call of a kfunc, or the address or value of a kernel object."""

    extern: Extern


Use = MapUse | DataUse | FunctionUse | ExternUse


class ObjectCode:
    """The object's functions with their instructions' operands by slot, counted from the function's start."""

    def __init__(self, sources: Sources, map_places: Mapping[int, str], externs: Mapping[str, Extern]) -> None:
        """``map_places``: names of maps by their offset in ``.maps``."""
        self._sources, self._map_places, self._externs = sources, map_places, externs
        self._data = {section.index for section in sources.data}
        self._starts: dict[tuple[int, int], ObjectFunction] = {}
        for function in sources.functions:
            self._starts.setdefault((function.section.index, function.start), function)
        self._relocated = self._relocations()
        self.uses: dict[ObjectFunction, dict[int, Use]] = {
            function: self._uses(function) for function in sources.functions
        }

    def function_at(self, section: int, slot: int) -> ObjectFunction | None:
        """The function that starts at a slot of a section."""
        return self._starts.get((section, slot))

    def _relocations(self) -> dict[tuple[int, int], ElfRelocation]:
        found: dict[tuple[int, int], ElfRelocation] = {}
        for index, entries in self._sources.relocations.items():
            section = self._sources.elf.sections[index]
            if not section.executable:
                continue
            for entry in entries:
                if entry.type == R_BPF_NONE:
                    continue
                if entry.offset % SLOT_SIZE or entry.offset >= section.size:
                    raise ObjectError(
                        f"a relocation at {entry.offset:#x} is not at an instruction", section=section.name
                    )
                if found.setdefault((index, entry.offset // SLOT_SIZE), entry) is not entry:
                    raise ObjectError(f"two relocations at {entry.offset:#x}", section=section.name)
        return found

    def _uses(self, function: ObjectFunction) -> dict[int, Use]:
        uses: dict[int, Use] = {}
        slot = 0
        for insn in function.insns:
            entry = self._relocated.get((function.section.index, function.start + slot))
            if entry is not None:
                uses[slot] = self._relocated_use(function, slot, insn, entry)
            elif insn.function is not None:
                # Within a section the compiler has resolved the distance of a call.
                if insn.code == LD_IMM64:
                    raise self._error(function, slot, "the address of a function is not relocated")
                uses[slot] = self._function_use(function, slot, function.section.index, slot + 1 + function.start, insn)
            elif insn.slots == 2 and (function.section.index, function.start + slot + 1) in self._relocated:
                raise self._error(function, slot + 1, "a relocation is not at an instruction")
            slot += insn.slots
        return uses

    def _function_use(self, function: ObjectFunction, slot: int, section: int, base: int, insn: Insn) -> FunctionUse:
        target = base + insn.imm
        called = self.function_at(section, target)
        if called is None:
            where = self._sources.elf.sections[section].name
            raise self._error(function, slot, f"no function begins at slot {target} of {where}")
        return FunctionUse(called)

    def _relocated_use(self, function: ObjectFunction, slot: int, insn: Insn, entry: ElfRelocation) -> Use:
        symbol = self._sources.symbol(entry)
        if insn.code == CALL and entry.type == R_BPF_64_32:
            return self._called(function, slot, insn, symbol)
        if insn.code == LD_IMM64 and entry.type == R_BPF_64_64:
            return self._loaded(function, slot, insn, symbol)
        raise self._error(function, slot, f"relocation type {entry.type} on instruction 0x{insn.code:02x}")

    def _called(self, function: ObjectFunction, slot: int, insn: Insn, symbol: ElfSymbol) -> Use:
        if symbol.is_undefined:
            extern = self._extern(function, slot, symbol)
            if extern.kind is not ExternKind.FUNCTION:
                raise self._error(function, slot, f"{symbol.name} is called, but is {extern.kind.value}")
            return ExternUse(extern)
        if insn.src != CallKind.SUBPROG:
            raise self._error(function, slot, f"a call of kind {insn.src} is relocated")
        section = self._sources.section(symbol)
        if section is None or not section.executable or symbol.value % SLOT_SIZE:
            raise self._error(function, slot, f"{symbol.name or 'a symbol'} is called, but is not a function")
        return self._function_use(function, slot, section.index, symbol.value // SLOT_SIZE + 1, insn)

    def _loaded(self, function: ObjectFunction, slot: int, insn: Insn, symbol: ElfSymbol) -> Use:
        if symbol.is_undefined:
            return ExternUse(self._extern(function, slot, symbol))
        section = self._sources.section(symbol)
        offset = symbol.value + insn.imm - (insn.imm >> 63 << 64)
        if section is None:
            raise self._error(function, slot, f"{symbol.name or 'a symbol'} is in no section")
        if section.executable:
            called = None if offset < 0 or offset % SLOT_SIZE else self.function_at(section.index, offset // SLOT_SIZE)
            if called is None:
                raise self._error(function, slot, f"no function begins at byte {offset:#x} of {section.name}")
            return FunctionUse(called)
        if section is self._sources.maps:
            name = self._map_places.get(symbol.value)
            if name is None or insn.imm:
                raise self._error(function, slot, f"no map is at byte {offset:#x} of {section.name}")
            return MapUse(name)
        if section.index not in self._data:
            raise self._error(function, slot, f"{section.name} holds no global variables")
        # The address just after a variable is valid here; the verifier judges it.
        if not 0 <= offset <= section.size:
            raise self._error(function, slot, f"byte {offset:#x} of {section.name}, which has {section.size}")
        if insn.src != Imm64.VALUE:
            raise self._error(function, slot, f"an immediate of kind {insn.src} is relocated")
        return DataUse(section.index, offset)

    def _extern(self, function: ObjectFunction, slot: int, symbol: ElfSymbol) -> Extern:
        extern = self._externs.get(symbol.name)
        if extern is None:
            raise self._error(function, slot, "a relocation refers to nothing")
        return extern

    @staticmethod
    def _error(function: ObjectFunction, slot: int, reason: str) -> ObjectError:
        where = f"in {function.name} at slot {function.start + slot}"
        return ObjectError(f"{where}: {reason}", section=function.section.name)
