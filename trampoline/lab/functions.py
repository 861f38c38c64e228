"""The functions of a kernel by name, address, BTF id and pattern; a kernel that has every function of a BTF.

>>> with Lab("6.12", btf=Btf.read("/sys/kernel/btf/vmlinux")) as lab:
...     targets = lab.population.select(["tcp_*"])
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from errno import EINVAL, ENOENT
from fnmatch import translate
from functools import cached_property
from typing import NamedTuple, TypedDict

from emu.kernel.errors import KernelError
from emu.kernel.kernel import Kernel
from emu.kernel.routines import Routine
from emu.kernel.text.entry import EntryLayout
from emu.kernel.text.functions import AssemblyFunctions, FunctionSource, FunctionText, PlacedFunction
from emu.kernel.text.stamped_text import TextSource
from trampoline.bpf.btf.func_model import FuncModel
from trampoline.lab.btf_functions import BtfFunctions, Shape
from trampoline.releases.kernel_release import KernelRelease

EXEC_SIZE = 256 << 20
"""Address space for the images of a populated kernel: a page for each function where images do not share pages."""
SLAB_SIZE = 128 << 20
PERCPU_SIZE = 4 << 20
"""For a reference count of each image, old ones included."""
RAM_SIZE = 512 << 20
"""Guest RAM of a populated kernel; the host commits what is touched."""
SCHEDULE = "schedule"

_VMLINUX = 1 << 32 | 0x80000000
_BTF_IDS = 1 << 32
_GLOB = re.compile(r"[*?\[]")


def is_glob(pattern: str) -> bool:
    """Whether a text is a pattern, not a name."""
    return _GLOB.search(pattern) is not None


class KernelFunction(NamedTuple):
    """A function that can be named as a target; ``site`` is its patch site's address, 0 where it has none."""

    name: str
    address: int
    site: int
    btf_id: int
    module: str = ""

    @property
    def key(self) -> int:
        """The key of its trampoline (``bpf_trampoline_compute_key``)."""
        return _VMLINUX | self.btf_id

    @property
    def qualified(self) -> str:
        """``module:name``, or the name alone for the kernel's own."""
        return f"{self.module}:{self.name}" if self.module else self.name


@dataclass(frozen=True, slots=True)
class HostCallEntries:
    """Traceable functions in the kernel's text that jump to host calls of the same names."""

    names: tuple[str, ...]

    def place(self, start: int, entry: EntryLayout, symbols: Mapping[str, int]) -> list[PlacedFunction]:
        """Lay them out. KeyError where there is no such host call."""
        functions = tuple(FunctionText(name, f"jmp {name}.host_call") for name in self.names)
        constants = {f"{name}.host_call": symbols[name] for name in self.names}
        return AssemblyFunctions(functions, constants=constants).place(start, entry, symbols)


class KernelSizes(TypedDict, total=False):
    """The sizes of a kernel that are not its defaults, in bytes."""

    exec_size: int
    slab_size: int
    percpu_size: int
    ram_bytes: int


def memory_of(functions: BtfFunctions | None) -> KernelSizes:
    """What a kernel with these functions needs, so that each may be attached to; the defaults for None."""
    if functions is None:
        return {}
    return {"exec_size": EXEC_SIZE, "slab_size": SLAB_SIZE, "percpu_size": PERCPU_SIZE, "ram_bytes": RAM_SIZE}


def populate(
    functions: BtfFunctions | None, routines: Mapping[str, Routine]
) -> tuple[FunctionSource | TextSource, ...]:
    """The sources of a kernel's text that has every function of a BTF, behind all others; none for None.

    What stands in the text already keeps its meaning: the kernel's routines, the selftests' functions.
    """
    if functions is None:
        return ()
    host_calls = {name for name, routine in routines.items() if routine.host_call} | {SCHEDULE}
    return HostCallEntries(tuple(sorted(host_calls & set(functions.names)))), functions


class Population:
    """The functions of one kernel. ``functions`` are those of its BTF, None where it has none.

    Without a BTF, functions that have a prototype get ids in the order in which they are asked for.
    """

    def __init__(self, kernel: Kernel, release: KernelRelease, functions: BtfFunctions | None = None) -> None:
        self._kernel, self._release, self.functions = kernel, release, functions
        self._others: dict[str, int] = {}
        self._models: dict[int, FuncModel] = {}

    def btf_id(self, function: PlacedFunction) -> int:
        """The type id of a function. One that the BTF does not have gets an id behind its last."""
        if function.btf_id:
            return function.btf_id
        found = None if function.module else self._standing.get(function.name)
        if found is not None:
            return found
        first = len(self.functions.btf) if self.functions else 1
        name = f"{function.module}:{function.name}" if function.module else function.name
        return self._others.setdefault(name, first + len(self._others))

    def model(self, btf_id: int) -> FuncModel | None:
        """The model of a function from BTF, None where BTF does not have it. KernelError: as ``BtfFunctions.model``."""
        if self.functions is None or btf_id not in self.functions.positions:
            return None
        model = self._models.get(btf_id)
        if model is None:
            model = self._models[btf_id] = self.functions.model(btf_id, self._release)
        return model

    def arg_sizes(self, btf_id: int) -> tuple[int, ...] | None:
        """Bytes of each argument of a function, None where BTF does not have it. KernelError as ``model``."""
        if self.functions is None or btf_id not in self.functions.positions:
            return None
        return self.functions.arg_sizes(btf_id, self._release)

    def shape(self, btf_id: int) -> Shape:
        """The shape of a function of the BTF: its argument slots, and what it returns. KernelError (-ENOENT)."""
        if self.functions is None or btf_id not in self.functions.positions:
            raise KernelError(ENOENT, f"the BTF has no function with type id {btf_id}")
        return self.functions.shape(self.functions.positions[btf_id])

    def select(self, patterns: Iterable[str | int]) -> list[KernelFunction]:
        """The functions that patterns name, in their order: names, ``module:name``, globs (``tcp_*``), addresses, BTF
        ids (below 2^32).

        A name stands for the first function by address that has it, a module's where the kernel has none. A glob stands
        for all functions with a prototype, by address: with a BTF, those that it has. It takes a module's only if it
        says so (``mod*:*``), and none that is there already. KernelError: -ENOENT where nothing is found, -EINVAL for
        a type id that does not exist, 0 among them, or is no function's.
        """
        chosen: list[KernelFunction] = []
        for pattern in patterns:
            if isinstance(pattern, str) and is_glob(pattern):
                matching = self._matching(pattern)
                if not matching:
                    raise KernelError(ENOENT, f"no function matches {pattern!r}")
                there = {function.address for function in chosen}
                chosen += [function for function in matching if function.address not in there]
            else:
                chosen.append(self.find(pattern))
        return chosen

    def find(self, where: str | int) -> KernelFunction:
        """One function by name, ``module:name``, address or BTF id, as ``select`` finds it."""
        if isinstance(where, str):
            return self.row(self._kernel.function(where))
        return self._by_id(where) if where < _BTF_IDS else self._at(where)

    def _by_id(self, btf_id: int) -> KernelFunction:
        rows = self._rows
        position = self._row_of_id.get(btf_id)
        if position is not None:
            return rows[position]
        for name, other in self._others.items():
            if other == btf_id:
                return self.row(self._kernel.function(name))
        if self.functions is not None and 0 < btf_id < len(self.functions.btf):
            raise KernelError(EINVAL, f"type id {btf_id} is not a function's")
        raise KernelError(EINVAL, f"there is no type id {btf_id}")

    def _at(self, address: int) -> KernelFunction:
        function = self._kernel.function_at(address)
        if function is None or function.address != address:
            raise KernelError(ENOENT, f"no function begins at {address:#x}")
        return self.row(function)

    def row(self, function: PlacedFunction) -> KernelFunction:
        """A function that is known by its place in the text."""
        return KernelFunction(
            function.name, function.address, function.site or 0, self.btf_id(function), function.module
        )

    def _matching(self, pattern: str) -> list[KernelFunction]:
        module, qualified, name = pattern.rpartition(":")
        matches = re.compile(translate(name)).match
        if not qualified:
            return [row for row in self._rows if matches(row.name)]
        of_module = re.compile(translate(module)).match
        rows = [
            self.row(function)
            for function in self._kernel.functions.single.values()
            if function.module and function.prototype and of_module(function.module) and matches(function.name)
        ]
        return sorted(rows, key=lambda row: row.address)

    @property
    def _rows(self) -> list[KernelFunction]:
        """The kernel's own functions that have a prototype, by address."""
        if self.functions is not None:
            return self._btf_rows
        single = self._kernel.functions.single.values()
        rows = [self.row(function) for function in single if function.prototype and not function.module]
        return sorted(rows, key=lambda row: row.address)

    @cached_property
    def _btf_rows(self) -> list[KernelFunction]:
        rows = [self.row(self._kernel.function(name)) for name in self._standing]
        for text in self._kernel.functions.texts:
            rows += map(KernelFunction, text.names, text.addresses, text.sites, text.btf_ids)
        return sorted(rows, key=lambda row: row.address)

    @property
    def _row_of_id(self) -> Mapping[int, int]:
        if self.functions is not None:
            return self._btf_row_of_id
        return {row.btf_id: position for position, row in enumerate(self._rows)}

    @cached_property
    def _btf_row_of_id(self) -> dict[int, int]:
        return {row.btf_id: position for position, row in enumerate(self._btf_rows)}

    @cached_property
    def _standing(self) -> dict[str, int]:
        """BTF ids of the functions that stood in the kernel before it was populated."""
        if self.functions is None:
            return {}
        stamped = {btf_id for text in self._kernel.functions.texts for btf_id in text.btf_ids}
        return {
            name: btf_id
            for name, btf_id in zip(self.functions.names, self.functions.ids, strict=True)
            if btf_id not in stamped
        }
