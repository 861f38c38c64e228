"""Who can go on: the interface that guest tasks, operations and grace periods have in common."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from emu.kernel.process_context import PointKind
from emu.schedule.action import ScheduleAction
from emu.schedule.footprint import Footprint
from emu.threads.moves import Begin, Do
from emu.threads.thread import Thread

if TYPE_CHECKING:
    from emu.schedule.simulation import World


@dataclass(frozen=True, slots=True)
class Where:
    """Where an actor stood before a step: an address of guest code, or a point of an operation in words."""

    kind: str
    what: str = ""
    address: int = 0

    def text(self, world: "World") -> str:
        """In words."""
        if self.kind == "code":
            return world.describe(self.address)
        if self.kind == PointKind.STORE:
            name = world.describe_data(self.address)
            return f"{self.kind}: {name or self.what}"
        return f"{self.kind}: {self.what}" if self.what else self.kind


class Actor(Protocol):
    """One of those between whom a scheduler chooses. Made anew for every schedule."""

    letter: str
    name: str

    @property
    def finished(self) -> bool:
        """Whether it has nothing to do any more; grace periods may get something to do again."""
        ...

    def actions(self) -> list[ScheduleAction]:
        """What it can do now; nothing while it is blocked. The first is what it does without a choice."""
        ...

    @property
    def thread(self) -> Thread | None:
        """The thread that goes on; None while there is none."""
        ...

    def moves(self, token: str) -> Sequence[Begin | Do]:
        """Moves that a choice makes before the thread goes on, if it is on a CPU, or an operation, then."""
        ...

    def perform(self, action: ScheduleAction, steps: int) -> int:
        """Do one of these, and go on for so many steps at most; how many were made. Violation."""
        ...

    def where(self) -> Where:
        """Where it stands."""
        ...

    def footprint(self, action: ScheduleAction) -> Footprint:
        """What its next step will touch; ``perform`` may add to it."""
        ...

    def end(self) -> None:
        """The schedule is over, perhaps before its end: let go of everything."""
        ...
