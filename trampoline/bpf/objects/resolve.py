"""Resolves an object's programs against a kernel: addresses, BTF ids and field offsets."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from trampoline.bpf.btf.btf import Btf, BtfKind
from trampoline.bpf.btf.ext import CoreRecord
from trampoline.bpf.errors import BtfError, ObjectError
from trampoline.bpf.isa.insn import CALL, CallKind, Imm64, Insn
from trampoline.bpf.objects.append_subprogs import MAX_PROGRAM, Placed, distance, func_infos, lay_out, line_infos
from trampoline.bpf.objects.core_relocation import describe, is_poisoned, kernel_types, relocate
from trampoline.bpf.objects.core_types import TypeComparison
from trampoline.bpf.objects.elf_sections import ObjectFunction, Sources
from trampoline.bpf.objects.externs import KCONFIG, ConfigValue, Extern, ExternKind, config_layout, essential_name
from trampoline.bpf.objects.global_data import data_map, map_name
from trampoline.bpf.objects.relocations import DataUse, ExternUse, FunctionUse, MapUse, ObjectCode, Use
from trampoline.bpf.objects.section_names import SectionKind, target_prefix
from trampoline.bpf.program import BpfProgram, MapSpec
from trampoline.bpf.uapi import AttachType, ProgType

_MISSING_KFUNC = 2002000000
"""Function number in the call that replaces a call of a missing weak kfunc."""
_F_RDONLY_PROG = 1 << 7
_MAX_SLOTS = 4 * MAX_PROGRAM
_MAX_RECORDS = 8
"""Maximum number of CO-RE relocations of one instruction; compilers emit one."""


@dataclass(frozen=True, slots=True)
class ResolveKernel:
    """The kernel's side of resolving; see ``BpfObject.resolve``."""

    btf: Btf | None
    kconfig: dict[str, ConfigValue]
    ksyms: dict[str, int]
    function_id: Callable[[str], int | None] | None


class Resolution:
    """One resolution of an object's programs."""

    def __init__(
        self,
        sources: Sources,
        code: ObjectCode,
        core: Mapping[tuple[int, int], list[CoreRecord]],
        externs: dict[str, Extern],
        maps: Mapping[str, MapSpec],
        data: Mapping[int, MapSpec],
        kernel: ResolveKernel,
        object_name: str,
    ) -> None:
        self._sources, self._code, self._core, self._externs = sources, code, core, externs
        self._maps, self._data, self._kernel, self._object_name = maps, data, kernel, object_name
        self._slots = 0
        self._missing: list[tuple[int, str]] = []
        self._config: tuple[MapSpec, dict[str, int]] | None = None

    def program(
        self, function: ObjectFunction, kind: SectionKind, *, target: str, attach_to: BpfProgram | None
    ) -> BpfProgram:
        """The program whose entry is this function. Raises ObjectError."""
        try:
            return self._program(function, kind, target, attach_to)
        except ObjectError as error:
            reason = f"program {function.name}: {error.reason}"
            raise ObjectError(reason, section=error.section or function.section.name) from None

    def _program(
        self, function: ObjectFunction, kind: SectionKind, target: str, attach_to: BpfProgram | None
    ) -> BpfProgram:
        placed = lay_out(self._code, function)
        self._slots += sum(place.function.slots for place in placed.values())
        if self._slots > _MAX_SLOTS:
            raise ObjectError(f"programs of more than {_MAX_SLOTS} slots together")
        maps = _Maps()
        insns: list[Insn] = []
        self._missing = []
        for place in placed.values():
            insns += self._insns(place, placed, maps)
        funcs = func_infos(self._sources.ext, placed)
        btf = self._sources.btf if funcs else None
        return BpfProgram(
            function.name,
            tuple(insns),
            kind.prog_type,
            kind.attach,
            self._sources.license,
            int(kind.flags),
            self._target_id(kind, target, attach_to),
            attach_to,
            tuple(maps.specs),
            btf,
            funcs,
            line_infos(self._sources.ext, btf, placed),
            function.section.name,
            target,
            tuple(self._missing),
        )

    def _insns(self, place: Placed, placed: dict[ObjectFunction, Placed], maps: "_Maps") -> list[Insn]:
        function, uses, out = place.function, self._code.uses[place.function], []
        slot = 0
        for insn in function.insns:
            use = uses.get(slot)
            records = self._core.get((function.section.index, function.start + slot), ())
            if len(records) > _MAX_RECORDS or (records and use is not None):
                raise ObjectError(f"the instruction at slot {function.start + slot} is relocated more than once")
            if use is not None:
                out.append(self._resolved(insn, use, place.slot + slot, placed, maps))
            else:
                out += self._relocated(insn, records, place.slot + slot)
            slot += insn.slots
        return out

    def _relocated(self, insn: Insn, records: "list[CoreRecord] | tuple[()]", slot: int) -> tuple[Insn, ...]:
        insns: tuple[Insn, ...] = (insn,)
        for record in records:
            if self._sources.btf is None:
                break
            types = kernel_types(self._kernel.btf) if self._kernel.btf is not None else None
            insns = relocate(insns[0], record, self._sources.btf, types)
            if is_poisoned(insns):
                self._missing.append((slot, describe(self._sources.btf, record)))
                break
        return insns

    def _resolved(self, insn: Insn, use: Use, slot: int, placed: dict[ObjectFunction, Placed], maps: "_Maps") -> Insn:
        match use:
            case FunctionUse(function):
                imm = distance(insn, slot, placed[function].slot)
                return replace(insn, src=CallKind.SUBPROG if insn.code == CALL else Imm64.FUNC, imm=imm)
            case MapUse(name):
                return replace(insn, src=Imm64.MAP_FD, imm=maps.index(self._maps[name]))
            case DataUse(section, offset):
                return _of_value(insn, maps, self._data[section], offset)
            case ExternUse(extern):
                return self._extern(insn, extern, maps)

    def _extern(self, insn: Insn, extern: Extern, maps: "_Maps") -> Insn:
        if extern.kind is ExternKind.CONFIG:
            spec, offsets = self._config_map()
            return _of_value(insn, maps, spec, offsets[extern.name])
        if extern.kind is ExternKind.ADDRESS:
            address = self._kernel.ksyms.get(extern.name)
            if address is None and not extern.weak:
                raise ObjectError(f"the address of {extern.name} is not known")
            return replace(insn, src=Imm64.VALUE, imm=(address or 0) % (1 << 64))
        type_id = self._kernel_id(extern)
        if insn.code == CALL:
            if type_id is None:
                return Insn(CALL, imm=_MISSING_KFUNC + extern.number)
            return Insn(CALL, src=CallKind.KFUNC, imm=type_id)
        return replace(insn, src=Imm64.VALUE if type_id is None else Imm64.BTF_ID, imm=type_id or 0)

    def _kernel_id(self, extern: Extern) -> int | None:
        """BTF id of a kfunc or variable in the kernel; None for a weak one that the kernel lacks."""
        kernel, local = self._kernel.btf, self._sources.btf
        if kernel is None or local is None:
            raise ObjectError(f"{extern.name} is {extern.kind.value}: resolving it needs the kernel's BTF")
        kind = BtfKind.FUNC if extern.kind is ExternKind.FUNCTION else BtfKind.VAR
        name = essential_name(extern.name)
        found = next((i for i in kernel_types(kernel).candidates(name, kind) if kernel.type(i).name == name), None)
        if found is None:
            if extern.weak:
                return None
            raise ObjectError(f"the kernel has no {name} ({extern.kind.value})")
        if not TypeComparison(local, kernel).exists(extern.type_id, kernel.type(found).type_id):
            if extern.weak and extern.kind is ExternKind.FUNCTION:
                return None
            raise ObjectError(f"{name} is of another type in the kernel")
        return found

    def _config_map(self) -> tuple[MapSpec, dict[str, int]]:
        if self._config is None:
            assert self._sources.btf is not None  # otherwise no extern exists
            layout = config_layout(self._sources.btf, self._externs, self._kernel.kconfig)
            name = map_name(self._object_name, KCONFIG)
            spec = data_map(name, layout.content, flags=_F_RDONLY_PROG, readonly=True)
            self._config = spec, layout.offsets
        return self._config

    def _target_id(self, kind: SectionKind, target: str, attach_to: BpfProgram | None) -> int:
        if attach_to is not None:
            return _function_of(attach_to, target)
        prefix = target_prefix(kind.attach) if kind.prog_type in (ProgType.TRACING, ProgType.LSM) else None
        if prefix is None or not target:
            return 0
        name = prefix + target
        if self._kernel.function_id is not None and (known := self._kernel.function_id(name)):
            return known
        if self._kernel.btf is None:
            return 0
        wanted = BtfKind.TYPEDEF if kind.attach == AttachType.TRACE_RAW_TP else BtfKind.FUNC
        types = kernel_types(self._kernel.btf)
        found = next((i for i in types.candidates(name, wanted) if self._kernel.btf.type(i).name == name), None)
        if found is None:
            raise ObjectError(f"the kernel has no {name} to trace")
        return found


class _Maps:
    """A program's maps in the order of their first use."""

    def __init__(self) -> None:
        self.specs: list[MapSpec] = []
        self._known: dict[int, int] = {}

    def index(self, spec: MapSpec) -> int:
        """Index of a map; adds the map if it is new."""
        at = self._known.setdefault(id(spec), len(self.specs))
        if at == len(self.specs):
            self.specs.append(spec)
        return at


def _of_value(insn: Insn, maps: "_Maps", spec: MapSpec, offset: int) -> Insn:
    return replace(insn, src=Imm64.MAP_VALUE, imm=offset << 32 | maps.index(spec))


def _function_of(program: BpfProgram, name: str) -> int:
    if program.btf is None:
        raise ObjectError(f"program {program.name} has no BTF to find {name} in")
    try:
        found = program.btf.functions_named(name)
    except BtfError as error:
        raise ObjectError(str(error), section=".BTF") from None
    if not found:
        raise ObjectError(f"program {program.name} has no function {name}")
    return found[0].id
