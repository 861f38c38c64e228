"""Moves: what can be done to threads and to their kernel, so that it can be done again."""

from collections.abc import Callable
from dataclasses import dataclass

from emu.threads.thread import Thread


@dataclass(frozen=True, slots=True)
class Go:
    """A thread makes one step: an instruction of a task, the way to an operation's next point."""

    thread: Thread


@dataclass(frozen=True, slots=True)
class Begin:
    """A thread comes to be."""

    thread: Thread

    def perform(self) -> None:
        """Make the move."""
        self.thread.begin()


@dataclass(frozen=True, slots=True)
class Do:
    """A decision of a scheduler or a user, which is no step: a method with its arguments."""

    what: Callable[..., object]
    args: tuple[object, ...] = ()

    def perform(self) -> None:
        """Make the move."""
        self.what(*self.args)


Move = Go | Begin | Do
