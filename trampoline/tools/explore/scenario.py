"""What a scenario consists of: tasks that call functions, and operations that go on meanwhile."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from emu.kernel.errors import KernelError


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """One call of a function by name; ``task`` makes them one after the other."""

    function: str


@dataclass(frozen=True, slots=True)
class PlannedTask:
    """A task and the CPUs that it may run on, the preferred one first."""

    name: str
    cpus: tuple[int, ...]
    calls: tuple[PlannedCall, ...]


@dataclass(eq=False, slots=True)
class Deed:
    """One thing that an operation does, as far as calls can tell: ``program`` (its number) is on ``functions``
    afterwards, or is not, with ``cookies`` by function, 0 where none is given; ``livepatched``: its functions are
    replaced afterwards, or are themselves again. ``begun`` and ``ended``: in which step.
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
    """A scenario that is ready. ``operations`` makes them anew for each schedule, by name.

    ``attached``: numbers of the programs that are on each function from the start; ``cookies``: with which, by program
    and function, 0 where none is given. ``may_refuse``: error codes that are no failure here. ``state``: objects of
    the scenario's own that operations change. ``restores``: who comes also goes, so that in the end everything is as
    it was at the start.
    """

    tasks: list[PlannedTask]
    operations: Callable[[], dict[str, Operation]]
    attached: dict[str, frozenset[int]] = field(default_factory=dict)
    cookies: Mapping[tuple[int, str], int] = field(default_factory=dict)
    may_refuse: frozenset[int] = frozenset()
    state: list[object] = field(default_factory=list)
    restores: bool = False
