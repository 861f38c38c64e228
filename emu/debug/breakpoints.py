"""Breakpoint kinds: address, phase, event, data access, condition. Equal values are the same breakpoint."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from emu.debug.errors import DebugError
from emu.events import Event

if TYPE_CHECKING:
    from emu.debug.debugger import Debugger


@dataclass(frozen=True)
class Breakpoint:
    """Base class of all breakpoints; other modules may derive their own."""

    def addresses(self, debugger: "Debugger") -> Iterable[int] | None:
        """The only code addresses where it can fire; None: anywhere, so that each instruction is checked."""
        return ()

    def check(self, debugger: "Debugger") -> None:
        """Raise DebugError, or KernelError for an unknown symbol, if it is not valid."""

    def begin(self, debugger: "Debugger") -> None:
        """Called when a run starts at this position; it does not fire there."""

    def met(self, debugger: "Debugger") -> bool:
        """True if the run must stop at the current position, which is one of the addresses."""
        return True

    def wants(self, event: Event) -> bool:
        """True if the run must stop after an event that has just happened."""
        return False


@dataclass(frozen=True)
class AtAddress(Breakpoint):
    """Before the instruction at an address or a symbol; ``condition`` must be true there."""

    where: int | str
    condition: "Callable[[Debugger], bool] | None" = None

    def addresses(self, debugger: "Debugger") -> Iterable[int]:
        return (debugger.address_of(self.where),)

    def check(self, debugger: "Debugger") -> None:
        debugger.address_of(self.where)

    def met(self, debugger: "Debugger") -> bool:
        return debugger.rip == debugger.address_of(self.where) and (self.condition is None or self.condition(debugger))


@dataclass(frozen=True)
class AtPhase(Breakpoint):
    """Start of a trampoline's phase: before its first instruction, after one of another phase."""

    phase: str

    def check(self, debugger: "Debugger") -> None:
        if debugger.phases and self.phase not in debugger.phases:
            raise DebugError(f"no phase {self.phase!r}; there are {', '.join(debugger.phases)}")

    def addresses(self, debugger: "Debugger") -> Iterable[int] | None:
        return debugger.addresses_of_phase(self.phase)

    def begin(self, debugger: "Debugger") -> None:
        inside = debugger.phase() == self.phase
        debugger.notes[self] = debugger.position if inside else -1

    def met(self, debugger: "Debugger") -> bool:
        if debugger.phase() != self.phase:
            return False
        before, debugger.notes[self] = debugger.notes[self], debugger.position
        return before != debugger.position - 1


@dataclass(frozen=True)
class AtEvent(Breakpoint):
    """After an event of a class (of ``emu.events``), by its name; None: after any event."""

    kind: str | None = None

    def wants(self, event: Event) -> bool:
        return self.kind is None or any(base.__name__ == self.kind for base in type(event).__mro__)


@dataclass(frozen=True)
class DataAccess(Breakpoint):
    """After an instruction that reads ("r"), writes ("w") or either ("rw") a range of guest memory, which must be
    mapped: NotMapped.
    """

    start: int
    size: int
    how: str = "rw"

    def check(self, debugger: "Debugger") -> None:
        if self.how not in ("r", "w", "rw"):
            raise DebugError(f"access {self.how!r}: must be r, w or rw")
        if self.size < 1 or not 0 <= self.start < 1 << 64:
            raise DebugError(f"{self.size} bytes at {self.start:#x} can't be watched")
        debugger.kernel.machine.read(self.start, self.size)


@dataclass(frozen=True)
class When(Breakpoint):
    """Before the first instruction at which a condition is true; the condition must have no side effects."""

    condition: "Callable[[Debugger], bool]"
    text: str = ""

    def addresses(self, debugger: "Debugger") -> None:
        pass

    def met(self, debugger: "Debugger") -> bool:
        return self.condition(debugger)
