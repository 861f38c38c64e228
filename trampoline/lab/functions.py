"""Functions of a kernel by name, address, BTF id and pattern; a kernel that has every function of a BTF.

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
"""Address space in bytes for the images of a populated kernel: a page for each function if images do not share pages.
"""
SLAB_SIZE = 128 << 20
PERCPU_SIZE = 4 << 20
"""Bytes of per-CPU memory: a reference count for each image, old ones included."""
RAM_SIZE = 512 << 20
"""Guest RAM of a populated kernel, in bytes; the host commits touched pages only."""
SCHEDULE = "schedule"

_VMLINUX = 1 << 32 | 0x80000000
_BTF_IDS = 1 << 32
_GLOB = re.compile(r"[*?\[]")


def is_glob(pattern: str) -> bool:
    """True if a text is a pattern, not a name."""
    return _GLOB.search(pattern) is not None


class KernelFunction(NamedTuple):
    """A function that can be named as a target; ``site`` is the guest address of its patch site, 0 if it has none."""

    name: str
    address: int
    site: int
    btf_id: int
    module: str = ""

    @property
    def key(self) -> int:
        """Key of its trampoline (``bpf_verifier.h:bpf_trampoline_compute_key()``)."""
        return _VMLINUX | self.btf_id

    @property
    def qualified(self) -> str:
        """``module:name``, or the plain name of a kernel function."""
        return f"{self.module}:{self.name}" if self.module else self.name


@dataclass(frozen=True, slots=True)
class HostCallEntries:
    """Traceable functions in the kernel's text that jump to host calls of the same names."""

    names: tuple[str, ...]

    def place(self, start: int, entry: EntryLayout, symbols: Mapping[str, int]) -> list[PlacedFunction]:
        """Lays them out from guest address ``start``. KeyError if a host call is missing."""
        functions = tuple(FunctionText(name, f"jmp {name}.host_call") for name in self.names)
        constants = {f"{name}.host_call": symbols[name] for name in self.names}
        return AssemblyFunctions(functions, constants=constants).place(start, entry, symbols)


class KernelSizes(TypedDict, total=False):
    """Sizes of a kernel that differ from the defaults, in bytes."""

    exec_size: int
    slab_size: int
    percpu_size: int
    ram_bytes: int


def memory_of(functions: BtfFunctions | None) -> KernelSizes:
    """Sizes with which every one of these functions can be attached to; the defaults for None."""
    if functions is None:
        return {}
    return {"exec_size": EXEC_SIZE, "slab_size": SLAB_SIZE, "percpu_size": PERCPU_SIZE, "ram_bytes": RAM_SIZE}


def populate(
    functions: BtfFunctions | None, routines: Mapping[str, Routine]
) -> tuple[FunctionSource | TextSource, ...]:
    """Sources of a kernel's text for every function of a BTF, placed after all others; none for None.

    Functions already in the text stay: the kernel's routines, the selftests' functions.
    """
    if functions is None:
        return ()
    host_calls = {name for name, routine in routines.items() if routine.host_call} | {SCHEDULE}
    return HostCallEntries(tuple(sorted(host_calls & set(functions.names)))), functions


class Population:
    """Functions of one kernel. ``functions`` are those of its BTF, None without a BTF.

    Without a BTF, functions that have a prototype get ids in the order of their first look-up.
    """

    def __init__(self, kernel: Kernel, release: KernelRelease, functions: BtfFunctions | None = None) -> None:
        self._kernel, self._release, self.functions = kernel, release, functions
        self._others: dict[str, int] = {}
        self._models: dict[int, FuncModel] = {}

    def btf_id(self, function: PlacedFunction) -> int:
        """Type id of a function. A function that the BTF does not have gets an id after its last."""
        if function.btf_id:
            return function.btf_id
        found = None if function.module else self._present.get(function.name)
        if found is not None:
            return found
        first = len(self.functions.btf) if self.functions else 1
        name = f"{function.module}:{function.name}" if function.module else function.name
        return self._others.setdefault(name, first + len(self._others))

    def model(self, btf_id: int) -> FuncModel | None:
        """Model of a function from BTF, None if BTF does not have it. KernelError as ``BtfFunctions.model``."""
        if self.functions is None or btf_id not in self.functions.positions:
            return None
        model = self._models.get(btf_id)
        if model is None:
            model = self._models[btf_id] = self.functions.model(btf_id, self._release)
        return model

    def arg_sizes(self, btf_id: int) -> tuple[int, ...] | None:
        """Size in bytes of each argument of a function, None if BTF does not have it. KernelError as ``model``."""
        if self.functions is None or btf_id not in self.functions.positions:
            return None
        return self.functions.arg_sizes(btf_id, self._release)

    def shape(self, btf_id: int) -> Shape:
        """Shape of a function of the BTF: its argument slots and return size. KernelError (-ENOENT)."""
        if self.functions is None or btf_id not in self.functions.positions:
            raise KernelError(ENOENT, f"the BTF has no function with type id {btf_id}")
        return self.functions.shape(self.functions.positions[btf_id])

    def select(self, patterns: Iterable[str | int]) -> list[KernelFunction]:
        """Functions that patterns name, in their order: names, ``module:name``, globs (``tcp_*``), addresses, BTF ids
        (below 2^32).

        A name selects the first function by address that has it, a module's if the kernel has none. A glob selects all
        functions with a prototype, by address: with a BTF, those that it has. It selects module functions only if it
        names a module (``mod*:*``), and skips functions already selected. KernelError: -ENOENT if nothing is found,
        -EINVAL for a type id that does not exist, such as 0, or is not a function's.
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
        """One function by name, ``module:name``, address or BTF id, as in ``select``."""
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
        raise KernelError(EINVAL, f"no type id {btf_id} in the BTF")

    def _at(self, address: int) -> KernelFunction:
        function = self._kernel.function_at(address)
        if function is None or function.address != address:
            raise KernelError(ENOENT, f"no function starts at {address:#x}")
        return self.row(function)

    def row(self, function: PlacedFunction) -> KernelFunction:
        """Row of a function in the kernel's text."""
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
        """Kernel functions with a prototype, without those of modules, by address."""
        if self.functions is not None:
            return self._btf_rows
        single = self._kernel.functions.single.values()
        rows = [self.row(function) for function in single if function.prototype and not function.module]
        return sorted(rows, key=lambda row: row.address)

    @cached_property
    def _btf_rows(self) -> list[KernelFunction]:
        rows = [self.row(self._kernel.function(name)) for name in self._present]
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
    def _present(self) -> dict[str, int]:
        """BTF ids of the functions that were in the kernel before it was populated."""
        if self.functions is None:
            return {}
        stamped = {btf_id for text in self._kernel.functions.texts for btf_id in text.btf_ids}
        return {
            name: btf_id
            for name, btf_id in zip(self.functions.names, self.functions.ids, strict=True)
            if btf_id not in stamped
        }
