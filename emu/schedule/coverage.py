"""Coverage of schedules: edges of guest code, and pairs of conflicting accesses.

An **edge** is two visible instructions that a task executed one after the other, by their addresses (every branch that
matters to other actors is between two of them). A **pair** is two accesses of different actors to the same eight bytes,
patched instruction or lock, consecutive for that place, at least one of them a write: a read and the write before it, a
write and the write or the reads before it. Of guest code every load and store counts, of operations stores, text writes
and locks; reads of operations are not observed. Memory of a single task does not count.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import CodeType, FrameType
from typing import TYPE_CHECKING

from emu.host.access_log import WRITE, words_of
from emu.kernel.process_context import Lock, Point, PointKind
from emu.machine.address_map import PAGE_MASK, PAGE_SHIFT
from emu.machine.machine import STACK_SIZE
from emu.machine.paging import frame_of
from emu.schedule.actor import Actor
from emu.schedule.operation_actor import ControlActor, GraceActor
from emu.schedule.task_actor import GuestActor

if TYPE_CHECKING:
    from emu.schedule.simulation import World

Pair = tuple[str, str]
_BELOW = (
    "emu/kernel/process_context.py",
    "emu/machine/address_space.py",
    "emu/machine/machine.py",
    "emu/machine/guest_struct.py",
    "emu/kernel/mm/slab.py",
    "emu/schedule/ownership.py",
    "emu/schedule/coverage.py",
)
"""Files whose functions stores pass through: a store is attributed to their caller."""
_MANY_STRETCHES = 1 << 13
_ACCESSES = frozenset({PointKind.STORE, PointKind.TEXT_WRITE, PointKind.LOCK, PointKind.UNLOCK})


@dataclass(slots=True)
class Coverage:
    """Coverage so far."""

    edges: set[tuple[int, int]] = field(default_factory=set)
    pairs: set[Pair] = field(default_factory=set)
    """Two places, in the order in which they were passed; in guest code, a symbol and an offset."""
    states: set[tuple[str, str]] = field(default_factory=set)
    """States of objects with a life cycle, and what tasks were doing then, in words."""

    def add(self, other: "Coverage") -> None:
        """Add another one's coverage."""
        self.edges |= other.edges
        self.pairs |= other.pairs
        self.states |= other.states


@dataclass(slots=True)
class _Passed:
    """The last writer of a place, and the readers since then."""

    writer: object = None
    wrote: str = ""
    readers: list[tuple[object, str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Continuous run of a task: visible instructions, and accesses (place, position, True for a write)."""

    path: tuple[int, ...]
    accesses: tuple[tuple[object, str, bool], ...]


class CoverageWatch:
    """Records coverage of schedules, as one of a world's invariants; never fails. Create it before ``World.open``."""

    IS_CACHE = True

    def __init__(self, world: "World") -> None:
        self.coverage = Coverage()
        self._world = world
        self._machine = world.kernel.machine
        self._is_on = False
        self._engines = [vcpu.engine for vcpu in self._machine.vcpus]
        self._below: dict[CodeType, bool] = {}
        self._last: dict[object, int] = {}
        self._arrived: list[tuple[Point, str]] = []
        self._standing: dict[object, tuple[Point, str]] = {}
        self._passed: dict[object, _Passed] = {}
        self._own_frames: set[int] = set()
        self._stretches: dict[bytes, _Stretch] = {}
        self._covered: set[bytes] = set()
        """Runs whose edges are in ``coverage``."""
        world.visible.log_visits()
        world.kernel.process.watchers.append(self._at_point)

    def end(self) -> None:
        """End a schedule; the next one may not be recorded."""
        self._is_on = False

    def take(self) -> Coverage:
        """Coverage since the last call."""
        found, self.coverage = self.coverage, Coverage()
        self._covered.clear()
        return found

    def begin(self, world: "World") -> None:
        self._is_on = True
        self._arrived.clear()
        self._standing.clear()
        self._passed.clear()
        self._last.clear()
        for engine in self._engines:
            engine.take_visits()
        if not self._own_frames:
            self._own_frames = set(self._find_own_frames())

    def after_step(self, world: "World", actor: Actor) -> None:
        if isinstance(actor, GuestActor):
            for engine in self._engines:
                visits = engine.take_visits()
                if visits:
                    self._visited(actor, visits)
        if self._arrived or actor in self._standing:
            self._add_passed_points(actor)

    def at_rest(self, world: "World") -> None:
        pass

    # Guest code -----------------------------------------------------------------------------------------------------

    def _visited(self, actor: Actor, visits: bytes) -> None:
        stretch = self._stretches.get(visits)
        if stretch is None:
            if len(self._stretches) >= _MANY_STRETCHES:
                self._stretches.clear()
            stretch = self._stretches[visits] = self._stretch(words_of(visits))
        edges = self.coverage.edges
        if stretch.path:
            edges.add((self._last.get(actor, 0), stretch.path[0]))
            if visits not in self._covered:
                self._covered.add(visits)
                edges.update(pairwise(stretch.path))
            self._last[actor] = stretch.path[-1]
        passed_at = self._passed.get
        for place, where, writes in stretch.accesses:
            passed = passed_at(place)
            if passed is None or passed.writer is not actor or passed.readers:
                self._access(actor, place, where, writes=writes)
            elif writes:
                passed.wrote = where

    def _stretch(self, words: Sequence[int]) -> "_Stretch":
        """Effects of a run of guest code that other actors can observe: of the accesses to one place, the reads before
        the first write, the first write and the last one.
        """
        own, visible = self._own_frames, self._world.visible.instructions
        path: list[int] = []
        accesses: dict[tuple[object, str], tuple[object, str, bool]] = {}

        def touch(place: object, rip: int, *, writes: bool) -> None:
            found = place, self._named(rip), writes
            if writes:
                if accesses.setdefault((place, "first"), found) is not found:
                    accesses[place, "last"] = found
            elif (place, "first") not in accesses:
                accesses.setdefault((place, f"read {rip}"), found)

        entries = iter(words)
        for rip, address, how in zip(entries, entries, entries, strict=True):
            if not how:
                path.append(rip)
                instruction = visible.get(rip)
                if instruction is not None and instruction.is_site:
                    touch(("text", rip), rip, writes=False)
            elif address >> PAGE_SHIFT not in own:
                touch(address >> 3, rip, writes=how & 0xFFFFFFFF == WRITE)
        return _Stretch(tuple(path), tuple(accesses.values()))

    def _find_own_frames(self) -> Iterator[int]:
        """Frames of the tasks' stacks, and of memory that schedules ignore."""
        machine = self._machine
        ranges = [(task.stack_top - STACK_SIZE, task.stack_top) for task in machine.tasks]
        for start, end in [*ranges, *self._world.private]:
            for address in range(start, end, 1 << PAGE_SHIFT):
                yield frame_of(machine.page_entry(address))

    # Process context ------------------------------------------------------------------------------------------------

    def _at_point(self, point: Point) -> None:
        if point.kind in _ACCESSES and self._is_on and self._world.actors:
            self._arrived.append((point, self._caller(sys._getframe(2))))

    def _add_passed_points(self, actor: Actor) -> None:
        """Record the points that an actor has passed: its old position and those after it, except its current one."""
        arrived, self._arrived = self._arrived, []
        before = self._standing.pop(actor, None)
        if before is not None:
            arrived.insert(0, before)
        present = actor.point if isinstance(actor, ControlActor | GraceActor) else None
        for point, where in arrived:
            if point is present:
                self._standing[actor] = point, where
            else:
                self._passes(actor, point, where)

    def _passes(self, actor: object, point: Point, where: str) -> None:
        on = point.on
        if isinstance(on, Lock):
            self._access(actor, ("lock", on.name), where, writes=True)
        elif isinstance(on, tuple):
            address, size = on
            if point.kind is PointKind.TEXT_WRITE:
                self._access(actor, ("text", self._world.visible.site_over(address)), where, writes=True)
                return
            for start in range(address & ~7, address + size, 8):
                frame = frame_of(self._machine.page_entry(start))
                physical = frame << PAGE_SHIFT | start & PAGE_MASK
                self._access(actor, physical >> 3, where, writes=True)

    def _caller(self, frame: FrameType | None) -> str:
        known = self._below
        while frame is not None:
            code = frame.f_code
            below = known.get(code)
            if below is None:
                below = known[code] = code.co_filename.endswith(_BELOW) or code.co_filename.startswith("<")
            if not below:
                return f"{code.co_qualname}:{frame.f_lineno}"
            frame = frame.f_back
        return "process context"

    # Pairs ----------------------------------------------------------------------------------------------------------

    def _access(self, actor: object, place: object, where: str, *, writes: bool) -> None:
        passed = self._passed.get(place)
        if passed is None:
            passed = self._passed[place] = _Passed()
        elif passed.wrote and passed.writer is not actor:
            self.coverage.pairs.add((passed.wrote, where))
        if not writes:
            passed.readers.append((actor, where))
            return
        for reader, there in passed.readers:
            if reader is not actor:
                self.coverage.pairs.add((there, where))
        passed.writer, passed.wrote = actor, where
        passed.readers.clear()

    def _named(self, rip: int) -> str:
        symbol = self._world.kernel.kallsyms.at(rip)
        return f"{rip:#x}" if symbol is None else f"{symbol.name}+{rip - symbol.address:#x}"
