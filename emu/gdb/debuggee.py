"""What is asked of a debugger by those who serve gdb: ``emu.debug.Debugger`` and what is built over it have it."""

from collections.abc import Sequence
from typing import Protocol

from emu.debug.breakpoints import Breakpoint
from emu.debug.stop import Stop
from emu.debug.threads import Thread
from emu.debug.views import CpuState
from emu.events import Event


class Debuggee(Protocol):
    """A debugger; see docs/debugging.md."""

    @property
    def threads(self) -> Sequence[Thread]:
        """All threads, by number."""
        ...

    @property
    def thread(self) -> Thread:
        """The current one. DebugError where there is none."""
        ...

    @property
    def position(self) -> int:
        """Where it stands on the line of time."""
        ...

    @property
    def end(self) -> int:
        """The last position of that line."""
        ...

    @property
    def events(self) -> Sequence[tuple[int, Event]]:
        """Events with their positions."""
        ...

    def select(self, thread: Thread) -> None:
        """Make a thread the current one."""
        ...

    def step(self, n: int = 1) -> Stop:
        """Steps of the current thread."""
        ...

    def run(self, limit: int | None = None) -> Stop:
        """To a breakpoint, the end, a fault."""
        ...

    def run_to(self, what: str) -> Stop:
        """As ``run``, to the next of something."""
        ...

    def back(self, n: int = 1) -> Stop:
        """Steps back."""
        ...

    def last_step(self, thread: Thread) -> int | None:
        """The position before a thread's last step."""
        ...

    def run_back(self) -> Stop:
        """Back to a breakpoint, or the beginning."""
        ...

    def goto(self, position: int) -> Stop:
        """To a position."""
        ...

    def interrupt(self) -> None:
        """Let a run stop; from any thread of the host."""
        ...

    def add(self, breakpoint: Breakpoint) -> Breakpoint:
        """Stop there."""
        ...

    def remove(self, breakpoint: Breakpoint) -> None:
        """Don't stop there any more."""
        ...

    def registers(self, thread: Thread | None = None) -> dict[str, int]:
        """Registers of a thread; none of an operation."""
        ...

    def set_register(self, name: str, value: int) -> None:
        """Change a register of the current thread."""
        ...

    def symbol(self, address: int) -> str:
        """What is at an address."""
        ...

    def vcpus(self) -> Sequence[CpuState]:
        """Every vCPU."""
        ...

    def read(self, address: int, size: int) -> bytes:
        """Guest memory."""
        ...

    def write(self, address: int, data: bytes) -> None:
        """Change guest memory."""
        ...
