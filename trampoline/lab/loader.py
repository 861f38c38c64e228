"""Real programs into a lab: maps made, program verified, rewritten, compiled, placed. All of it, or nothing."""

from collections.abc import Collection, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from emu.kernel.structs import PERCPU
from trampoline.bpf.btf.btf import Btf
from trampoline.bpf.btf.declarations import with_declarations
from trampoline.bpf.errors import TrampolineError
from trampoline.bpf.install.installer import InstallFunction, PokeKey
from trampoline.bpf.maps.array import ArrayMap
from trampoline.bpf.maps.array_of_maps import ArrayOfMaps
from trampoline.bpf.maps.bpf_map import BpfMap
from trampoline.bpf.maps.prog_array import ProgArray
from trampoline.bpf.maps.value_format import format_of
from trampoline.bpf.objects.bpf_object import BpfObject
from trampoline.bpf.objects.externs import ConfigValue
from trampoline.bpf.prog import BpfProg, TailOwner
from trampoline.bpf.program import BpfProgram, MapSpec
from trampoline.bpf.rewrite.environment import Environment
from trampoline.bpf.rewrite.rewrite import rewrite
from trampoline.bpf.rewrite.rewritten_program import RewrittenProgram
from trampoline.bpf.uapi import ATTACH_WORDS, AttachType, ProgType
from trampoline.bpf.verifier.errors import Unsupported, VerifierError
from trampoline.bpf.verifier.kernel_view import KernelView
from trampoline.bpf.verifier.load.bpf_prog_load import VerifiedLoad, bpf_prog_load
from trampoline.bpf.verifier.state.env import Capabilities
from trampoline.lab.loaded_object import LoadedObject, Variables

if TYPE_CHECKING:
    from trampoline.lab.lab import Lab

_RUNNABLE = frozenset(ATTACH_WORDS.values()) - {AttachType.MODIFY_RETURN_MULTI}
"""Attach types of programs that run in a lab; the one left out is no release's."""

PERCPU_VARIABLES = {
    "cpu_number": PERCPU.offset("cpu_number"),
    "pcpu_hot.cpu_number": PERCPU.offset("cpu_number"),
    "current_task": PERCPU.offset("current_task"),
    "pcpu_hot.current_task": PERCPU.offset("current_task"),
    "this_cpu_off": PERCPU.offset("this_cpu_off"),
}
"""Per-CPU variables that rewritten programs read, under the names that releases have for them."""


class Loader:
    """Loads the programs of one lab, whose kernel has a BTF."""

    def __init__(self, lab: "Lab", btf: Btf) -> None:
        self._lab, self._kernel_btf = lab, btf
        self.release = lab.release
        self._declared: tuple[str, ...] = ()
        self.view = KernelView(self.release.verifier, btf)

    @property
    def btf(self) -> Btf:
        """The types that programs are verified against."""
        return self.view.btf

    def _know(self, targets: Collection[str]) -> None:
        """Where the kernel's BTF lacks a target that the lab has, take in the functions of modules and of the lab."""
        lab = self._lab
        if all(not name or "*" in name or self.btf.functions_named(name) for name in targets):
            return
        own = lab.kernel.functions.single.values()
        declared = tuple(
            function.prototype
            for function in own
            if function.prototype and not self._kernel_btf.functions_named(function.name)
        )
        if declared != self._declared:
            self._declared = declared
            self.view = KernelView(self.release.verifier, with_declarations(self._kernel_btf, declared))

    @cached_property
    def _variables(self) -> dict[str, int]:
        runtime = self._lab.runtime
        return {**PERCPU_VARIABLES, "jiffies": runtime.jiffies_address}

    # One program ----------------------------------------------------------------------------------------------------

    def load(
        self,
        program: BpfProgram,
        maps: Mapping[str, BpfMap] | None = None,
        *,
        capabilities: Capabilities | None = None,
    ) -> BpfProg:
        """Load a program. ``maps``: those that exist already, by name; the others are made, and go with the program.

        Raises VerifierError with the kernel's errno, summary and log where the kernel refuses; Unsupported for what
        is not modelled; KernelError for a map that can't be made and -ENOMEM; UnsupportedMap, RewriteError, JitError.
        Nothing is left behind then.
        """
        attach_type = self._attach_type(program)
        program = self._with_target(program)
        maps_of = self._lab.runtime.maps
        with ExitStack() as undo:
            used: list[BpfMap] = []
            own: list[BpfMap] = []
            for spec in program.maps:
                found = (maps or {}).get(spec.name)
                if found is None:
                    found = maps_of.create(spec, program.btf)
                    undo.callback(maps_of.close, found)
                    own.append(found)
                used.append(found)
            try:
                loaded = bpf_prog_load(program, self.view, capabilities=capabilities)
            except (VerifierError, Unsupported) as error:
                error.where = program.place(error.slot)
                raise
            prog = self._install(attach_type, loaded, used, undo)
            prog.own_maps = tuple(own)
            undo.pop_all()
        return prog

    def _attach_type(self, program: BpfProgram) -> AttachType:
        attach, types = program.attach, (ProgType.TRACING, ProgType.LSM)
        if attach not in _RUNNABLE or program.prog_type not in types:
            kind = f"programs of type {int(program.prog_type)}, attach type {int(program.attach)}"
            raise Unsupported(f"running {kind}: no trampoline calls them")
        return AttachType(attach)

    def _with_target(self, program: BpfProgram) -> BpfProgram:
        """A program that only names its target gets its BTF id."""
        if program.attach_btf_id or not program.target or program.attach_prog is not None:
            return program
        self._know([program.target])
        functions = self.btf.functions_named(program.target)
        return replace(program, attach_btf_id=functions[0].id) if functions else program

    def target_name(self, program: BpfProgram) -> str:
        """The function that a program is for."""
        program = self._with_target(program)
        return self.btf.type(program.attach_btf_id).name if program.attach_btf_id else program.target

    def _install(
        self, attach_type: AttachType, loaded: VerifiedLoad, maps: list[BpfMap], undo: ExitStack
    ) -> BpfProg:
        lab, program, verified = self._lab, loaded.program, loaded.verified
        func = loaded.target.func if loaded.target is not None else None
        owner = TailOwner(int(program.prog_type), func.proto_id if func is not None else 0)
        for found in maps:
            if isinstance(found, ProgArray):
                before = found.owner
                found.check_user(owner)
                undo.callback(setattr, found, "owner", before)
        rewritten = rewrite(verified, self.release.rewrite, self._environment(maps))
        prog = lab.installer.install(
            program.name,
            attach_type,
            self._functions(rewritten, maps),
            program.insns,
            lines=program.lines,
            prog_type=int(program.prog_type),
            expected_attach_type=int(program.attach),
            sleepable=program.sleepable,
            uses=verified.uses,
            maps=maps,
            owner=owner,
        )
        undo.callback(lab.unload, prog)
        prog.accesses_ret = verified.accesses_ret
        if attach_type.is_multi and program.attach_btf_id and program.attach_prog is None:
            name = self.btf.type(program.attach_btf_id).name
            prog.attach_func = lab.targets.attach_func(attach_type, name, verified.accessed_args, verified.accesses_ret)
        return prog

    def _environment(self, maps: list[BpfMap]) -> Environment:
        runtime = self._lab.runtime
        values = {number: found.value_address for number, found in enumerate(maps) if isinstance(found, ArrayMap)}
        return Environment(
            runtime.call_base,
            functions=runtime.functions,
            variables=self._variables,
            maps=tuple(found.address for found in maps),
            map_values=values,
            kfunc_name=lambda btf_id: self.btf.type(btf_id).name,
        )

    def _functions(self, rewritten: RewrittenProgram, maps: list[BpfMap]) -> list[InstallFunction]:
        """The functions for the installer, which finds out their addresses."""
        pokes = []
        for call in rewritten.tail_calls:
            found = maps[call.map]
            if not isinstance(found, ProgArray):
                raise TrampolineError(f"a tail call through {found.name}, which is no program array")
            pokes.append(PokeKey(found, call.key))
        unplaced = rewritten.link([rewritten.call_base] * len(rewritten.funcs))
        return [
            InstallFunction(
                func,
                origins=known.origins,
                pokes=tuple(pokes),
                private_stack=known.uses_private_stack,
                name=known.name,
            )
            for func, known in zip(unplaced, rewritten.funcs, strict=True)
        ]

    # Whole objects --------------------------------------------------------------------------------------------------

    def open(
        self,
        obj: BpfObject,
        *,
        names: Collection[str] | None = None,
        data: Mapping[str, Any] | None = None,
        targets: Mapping[str, str] | None = None,
        kconfig: Mapping[str, ConfigValue] | None = None,
        maps: Mapping[str, BpfMap] | None = None,
    ) -> LoadedObject:
        """Load the programs of an object, with one map for all that name it.

        ``names``: which programs. ``data``: first values of global variables, read-only ones too. ``targets``: by
        program, the function instead of its section's. ``kconfig``: values of ``CONFIG_`` externs. ``maps``: existing
        ones instead of the object's. Raises what ``load`` and ``BpfObject.resolve`` raise; KeyError for a variable
        that there is not; nothing is left behind then.
        """
        wanted = [entry.name for entry in obj.entries if (entry.autoload if names is None else entry.name in names)]
        self._know([(targets or {}).get(one.name, one.kind.target) for one in obj.entries if one.name in wanted])
        known: dict[str, ConfigValue] = {"LINUX_KERNEL_VERSION": self.release.version.code}
        known |= kconfig or {}
        symbols = self._addresses(obj.symbols)
        programs = obj.resolve(self.btf, names=names, targets=targets, kconfig=known, ksyms=symbols)
        first = self._first_values(obj, data or {})
        programs = tuple(
            replace(program, maps=tuple(first.get(spec.name, spec) for spec in program.maps)) for program in programs
        )
        lab, maps_of = self._lab, self._lab.runtime.maps
        with ExitStack() as undo:
            made: dict[str, BpfMap] = {}
            given = maps or {}
            specs = {spec.name: spec for program in programs for spec in program.maps}
            specs = {**{name: first.get(name, spec) for name, spec in obj.maps.items()}, **specs}
            for name, spec in specs.items():
                if name not in given:
                    made[name] = maps_of.create(spec, obj.btf)
                    undo.callback(maps_of.close, made[name])
            everything = {**made, **given}
            loaded: dict[str, BpfProg] = {}
            for program in programs:
                loaded[program.name] = self.load(program, everything)
                undo.callback(lab.unload, loaded[program.name])
            self._fill_slots(obj, everything, loaded)
            undo.pop_all()
        sources = {program.name: program for program in programs}
        return LoadedObject(lab, sources, loaded, made, Variables(obj.variables, everything, obj.btf))

    def _addresses(self, names: Collection[str]) -> dict[str, int]:
        found = ((name, self._lab.kernel.kallsyms.find(name, None)) for name in names)
        return {name: symbol.address for name, symbol in found if symbol is not None}

    @staticmethod
    def _first_values(obj: BpfObject, data: Mapping[str, Any]) -> dict[str, MapSpec]:
        """The maps of global data whose first values the caller chose."""
        changed: dict[str, MapSpec] = {}
        for name, value in data.items():
            variable = obj.variables[name]
            spec = changed.get(variable.map, obj.maps[variable.map])
            content = bytearray(spec.initial.ljust(spec.value_size, b"\0"))
            encoded = format_of(obj.btf, variable.type_id, variable.size).encode(value)
            content[variable.offset : variable.offset + variable.size] = encoded
            changed[variable.map] = replace(spec, initial=bytes(content))
        return changed

    @staticmethod
    def _fill_slots(obj: BpfObject, maps: Mapping[str, BpfMap], programs: Mapping[str, BpfProg]) -> None:
        for name, slots in obj.initial_slots.items():
            found = maps[name]
            for index, held in slots.items():
                if isinstance(found, ProgArray) and held in programs:
                    found[index] = programs[held]
                elif isinstance(found, ArrayOfMaps):
                    found[index] = maps[held]

