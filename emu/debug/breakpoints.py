"""Where a run is to stop. All are values: equal ones are the same breakpoint."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from emu.debug.errors import DebugError
from emu.events import Event

if TYPE_CHECKING:
    from emu.debug.debugger import Debugger


@dataclass(frozen=True)
class Breakpoint:
    """Root of all breakpoints; others may derive their own."""

    def addresses(self, debugger: "Debugger") -> Iterable[int] | None:
        """The only addresses of code at which it can be met; None: anywhere, so that each instruction is looked at."""
        return ()

    def check(self, debugger: "Debugger") -> None:
        """Raise DebugError, or KernelError for an unknown symbol, where it makes no sense."""

    def begin(self, debugger: "Debugger") -> None:
        """A run begins here, where it is not met whatever holds."""

    def met(self, debugger: "Debugger") -> bool:
        """Whether the run is to stop here, at one of the addresses."""
        return True

    def wants(self, event: Event) -> bool:
        """Whether the run is to stop behind an event that has just happened."""
        return False


@dataclass(frozen=True)
class AtAddress(Breakpoint):
    """Before the instruction at an address, or at a symbol's; ``condition`` must hold there."""

    where: int | str
    condition: "Callable[[Debugger], bool] | None" = None

    def addresses(self, debugger: "Debugger") -> Iterable[int]:
        """See Breakpoint."""
        return (debugger.address_of(self.where),)

    def check(self, debugger: "Debugger") -> None:
        """See Breakpoint."""
        debugger.address_of(self.where)

    def met(self, debugger: "Debugger") -> bool:
        """See Breakpoint."""
        return debugger.rip == debugger.address_of(self.where) and (self.condition is None or self.condition(debugger))


@dataclass(frozen=True)
class AtPhase(Breakpoint):
    """Where a phase of a trampoline begins: before its first instruction, when another phase's went before."""

    phase: str

    def check(self, debugger: "Debugger") -> None:
        """See Breakpoint."""
        if debugger.phases and self.phase not in debugger.phases:
            raise DebugError(f"no phase {self.phase!r}; there are {', '.join(debugger.phases)}")

    def addresses(self, debugger: "Debugger") -> Iterable[int] | None:
        """See Breakpoint."""
        return debugger.addresses_of_phase(self.phase)

    def begin(self, debugger: "Debugger") -> None:
        """See Breakpoint."""
        inside = debugger.phase() == self.phase
        debugger.notes[self] = debugger.position if inside else -1

    def met(self, debugger: "Debugger") -> bool:
        """See Breakpoint."""
        if debugger.phase() != self.phase:
            return False
        before, debugger.notes[self] = debugger.notes[self], debugger.position
        return before != debugger.position - 1


@dataclass(frozen=True)
class AtEvent(Breakpoint):
    """Behind an event of a class (of ``emu.events``), by its name; None: behind any."""

    kind: str | None = None

    def wants(self, event: Event) -> bool:
        """See Breakpoint."""
        return self.kind is None or any(base.__name__ == self.kind for base in type(event).__mro__)


@dataclass(frozen=True)
class DataAccess(Breakpoint):
    """Behind an instruction that reads ("r"), writes ("w") or does either ("rw") to guest memory of a range, which is
    mapped: NotMapped.
    """

    start: int
    size: int
    how: str = "rw"

    def check(self, debugger: "Debugger") -> None:
        """See Breakpoint."""
        if self.how not in ("r", "w", "rw"):
            raise DebugError(f"access {self.how!r}: there are r, w and rw")
        if self.size < 1 or not 0 <= self.start < 1 << 64:
            raise DebugError(f"{self.size} bytes at {self.start:#x} can't be watched")
        debugger.kernel.machine.read(self.start, self.size)


@dataclass(frozen=True)
class When(Breakpoint):
    """Before the first instruction at which a condition holds; it must not change anything."""

    condition: "Callable[[Debugger], bool]"
    text: str = ""

    def addresses(self, debugger: "Debugger") -> None:
        """See Breakpoint."""

    def met(self, debugger: "Debugger") -> bool:
        """See Breakpoint."""
        return self.condition(debugger)
