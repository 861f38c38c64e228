"""A compiled object in a lab: its programs and maps, its global variables by name, its links."""

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from trampoline.bpf.btf.btf import Btf
from trampoline.bpf.errors import TrampolineError
from trampoline.bpf.maps.array import ArrayMap
from trampoline.bpf.maps.bpf_map import BpfMap
from trampoline.bpf.maps.value_format import ValueFormat, format_of
from trampoline.bpf.objects.bpf_object import GlobalVariable
from trampoline.bpf.prog import BpfProg
from trampoline.bpf.program import BpfProgram
from trampoline.lab.links.link import Link

if TYPE_CHECKING:
    from trampoline.lab.lab import Lab


class Variables(MutableMapping[str, Any]):
    """Global variables of an object in guest memory: ``data["counter"]``, ``data["counter"] = 5``."""

    def __init__(self, variables: Mapping[str, GlobalVariable], maps: Mapping[str, BpfMap], btf: Btf | None) -> None:
        self._variables, self._maps, self._btf = variables, maps, btf

    def _of(self, name: str) -> tuple[GlobalVariable, ArrayMap, ValueFormat]:
        variable = self._variables[name]
        found = self._maps[variable.map]
        if not isinstance(found, ArrayMap):
            raise TrampolineError(f"{name} is in {found.name}, which is no array")
        return variable, found, format_of(self._btf, variable.type_id, variable.size)

    def __getitem__(self, name: str) -> Any:
        variable, found, shape = self._of(name)
        return shape.decode(found.machine.read(found.value_address + variable.offset, variable.size))

    def __setitem__(self, name: str, value: Any) -> None:
        variable, found, shape = self._of(name)
        found.check_writable()
        found.machine.write(found.value_address + variable.offset, shape.encode(value))

    @property
    def maps(self) -> set[str]:
        """Names of the maps that hold variables."""
        return {variable.map for variable in self._variables.values()}

    def __delitem__(self, name: str) -> None:
        raise TypeError("a global variable stays")

    def __iter__(self) -> Iterator[str]:
        return (name for name, variable in self._variables.items() if variable.map in self._maps)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class LoadedObject:
    """What ``Lab.open`` gives; a context manager that detaches, unloads and frees everything."""

    def __init__(
        self,
        lab: "Lab",
        sources: Mapping[str, BpfProgram],
        programs: Mapping[str, BpfProg],
        maps: Mapping[str, BpfMap],
        data: Variables,
    ) -> None:
        self._lab, self._sources = lab, sources
        self.programs: dict[str, BpfProg] = dict(programs)
        """Its programs by name."""
        self.maps: dict[str, BpfMap] = dict(maps)
        """Its maps by name, those of global data too."""
        self.data = data
        self.links: list[Link] = []
        """What ``attach_all`` made and ``close`` detaches."""

    def attach(self, name: str, where: Any = None, *, cookie: int = 0) -> Link:
        """Attach a program to what its section says, or to ``where`` (a list or glob for a multi program).

        What ``Lab.attach`` and ``attach_multi`` raise; TrampolineError where nothing says where to.
        """
        link = self._attach(name, where, cookie)
        self.links.append(link)
        return link

    def _attach(self, name: str, where: Any, cookie: int) -> Link:
        prog, source = self.programs[name], self._sources[name]
        if prog.attach_type.is_multi:
            targets = where if where is not None else source.target
            if not targets:
                raise TrampolineError(f"{name}: attach it to which functions?")
            wanted: Sequence[Any] = targets.split(",") if isinstance(targets, str) else targets
            return self._lab.attach_multi(prog, wanted)
        return self._lab.attach(prog, self._target(name, source) if where is None else where, cookie=cookie)

    def function(self, name: str) -> str:
        """The kernel function that a program's section is about, of several the first; empty for none or a program."""
        source = self._sources[name]
        if source.attach_prog is not None:
            return ""
        if not self.programs[name].attach_type.is_multi:
            return self._lab.loader.target_name(source)
        found = self._lab.population.select([source.target.split(",")[0]]) if source.target else ()
        return next((row.qualified for row in found), "")

    def _target(self, name: str, source: BpfProgram) -> str | BpfProg:
        if source.attach_prog is not None:
            for other, found in self._sources.items():
                if found is source.attach_prog:
                    return self.programs[other]
            raise TrampolineError(f"{name} is for a program that is not of this object")
        target = self._lab.loader.target_name(source)
        if not target:
            raise TrampolineError(f"{name}: attach it to what?")
        return target

    def attach_all(self, cookies: Mapping[str, int] | None = None) -> list[Link]:
        """Attach every program as its section says: all, or on any error none. ``cookies`` by program."""
        made: list[Link] = []
        with ExitStack() as undo:
            for name in self.programs:
                made.append(self._attach(name, None, (cookies or {}).get(name, 0)))
                undo.callback(made[-1].detach)
            undo.pop_all()
        self.links += made
        return made

    def close(self) -> None:
        """Detach what is still attached, unload the programs, let go of the maps."""
        for link in reversed(self.links):
            if link.attached:
                link.detach()
        self.links.clear()
        for prog in self.programs.values():
            self._lab.unload(prog)
        self.programs.clear()
        for found in self.maps.values():
            self._lab.runtime.maps.close(found)
        self.maps.clear()
        self._lab.kernel.rcu.settle()

    def __enter__(self) -> "LoadedObject":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
