"""Moves: repeatable actions on threads and their kernel."""

from collections.abc import Callable
from dataclasses import dataclass

from emu.threads.thread import Thread


@dataclass(frozen=True, slots=True)
class Go:
    """A thread makes one step: an instruction of a task, or an operation's way to its next point."""

    thread: Thread


@dataclass(frozen=True, slots=True)
class Begin:
    """A thread is created."""

    thread: Thread

    def perform(self) -> None:
        """Make the move."""
        self.thread.begin()


@dataclass(frozen=True, slots=True)
class Do:
    """A decision of a scheduler or a user that is not a step: a method with its arguments."""

    what: Callable[..., object]
    args: tuple[object, ...] = ()

    def perform(self) -> None:
        """Make the move."""
        self.what(*self.args)


Move = Go | Begin | Do
