"""Interface of the actors of a schedule: guest tasks, operations and grace periods."""

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
    """Position of an actor before a step: an address of guest code, or a point of an operation in words."""

    kind: str
    what: str = ""
    address: int = 0

    def text(self, world: "World") -> str:
        """The position in words."""
        if self.kind == "code":
            return world.describe(self.address)
        if self.kind == PointKind.STORE:
            name = world.describe_data(self.address)
            return f"{self.kind}: {name or self.what}"
        return f"{self.kind}: {self.what}" if self.what else self.kind


class Actor(Protocol):
    """An actor that a scheduler may choose. Built anew for every schedule."""

    letter: str
    name: str

    @property
    def finished(self) -> bool:
        """True if it has nothing left to do; for grace periods this may change back."""
        ...

    def actions(self) -> list[ScheduleAction]:
        """Its possible next steps; none while it is blocked. The first is the step without a choice."""
        ...

    @property
    def thread(self) -> Thread | None:
        """The thread that makes the next step; None while there is none."""
        ...

    def moves(self, token: str) -> Sequence[Begin | Do]:
        """Moves that a choice makes before the thread's step, if the thread can then make one."""
        ...

    def perform(self, action: ScheduleAction, steps: int) -> int:
        """Perform one of these actions, and up to ``steps`` steps; returns the number of steps made. Violation."""
        ...

    def where(self) -> Where:
        """Its position."""
        ...

    def footprint(self, action: ScheduleAction) -> Footprint:
        """Places that its next step will touch; ``perform`` may add to it."""
        ...

    def end(self) -> None:
        """End the schedule, perhaps early, and release all resources."""
        ...
