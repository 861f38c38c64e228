"""Parts of a scenario: tasks that call functions, and concurrent operations."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from emu.kernel.errors import KernelError


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """One call of a function by name; a task makes its calls in order."""

    function: str


@dataclass(frozen=True, slots=True)
class PlannedTask:
    """A task and the CPUs that it may run on, in order of preference."""

    name: str
    cpus: tuple[int, ...]
    calls: tuple[PlannedCall, ...]


@dataclass(eq=False, slots=True)
class Deed:
    """One part of an operation, with its effects on calls. After it ``program`` (a number) is attached to ``functions``
    or detached from them, with ``cookies`` by function (default 0); ``livepatched``: the functions are replaced (true)
    or restored (false). ``begun`` and ``ended``: numbers of its first and last step.
    """

    name: str
    do: Callable[[], object]
    program: int = -1
    functions: tuple[str, ...] = ()
    attached: bool = False
    cookies: Mapping[str, int] = field(default_factory=dict)
    livepatched: bool | None = None
    begun: int = -1
    ended: int = -1
    error: KernelError | None = None


Operation = Sequence[Deed]


@dataclass(slots=True)
class Plan:
    """A scenario that is ready to run. ``operations`` makes its operations, by name, anew for each schedule.

    ``attached``: numbers of the programs on each function at the start; ``cookies``: theirs, by program and function
    (default 0). ``may_refuse``: error codes that operations may return. ``state``: the scenario's own objects that
    operations change. ``restores``: true if the final state must equal the start.
    """

    tasks: list[PlannedTask]
    operations: Callable[[], dict[str, Operation]]
    attached: dict[str, frozenset[int]] = field(default_factory=dict)
    cookies: Mapping[tuple[int, str], int] = field(default_factory=dict)
    may_refuse: frozenset[int] = frozenset()
    state: list[object] = field(default_factory=list)
    restores: bool = False
