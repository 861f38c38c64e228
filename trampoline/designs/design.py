"""Designs: ways for programs to get onto functions and run there, on a kernel and as data."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Literal, Protocol

from asm import DisplacementError
from emu.kernel.errors import KernelError
from emu.kernel.kernel import Kernel
from trampoline.bpf.boot import Boot
from trampoline.bpf.prog import BpfProg, BpfPrograms
from trampoline.designs.traits import Traits
from trampoline.rules import TrampolineRules
from trampoline.update.bpf_trampoline import BpfTrampoline, Trampolines
from trampoline.update.multi import attach_multi, check_distinct, detach_multi, remake
from trampoline.update.target import LinkEntry, TraceTarget


class Design(Protocol):
    """A design on one kernel. What attaches or detaches does so everywhere or, when it raises, nowhere."""

    name: str
    trampolines: Trampolines
    """The per-function trampolines: for targets that are no ftrace sites, and where the design has such."""

    def check(self, target: TraceTarget, prog: BpfProg) -> None:
        """Refuse what the design can't do. KernelError."""

    def attach(self, entry: LinkEntry) -> None:
        """Put a program on the target of a plain link. KernelError: text, tables, counts and memory are as before."""

    def detach(self, entry: LinkEntry) -> None:
        """Take it off again."""

    def attach_multi(self, entries: Sequence[LinkEntry], progress: Callable[[], object]) -> None:
        """Put a program on the functions of a multi link.

        ``progress`` is called once for each function. KernelError as ``attach``; -EINVAL for a function given twice.
        """

    def detach_multi(self, entries: Sequence[LinkEntry], progress: Callable[[], object]) -> None:
        """Take it off again."""

    def time_programs(self, enabled: bool) -> None:
        """Keep run-time statistics of programs, or keep them no more. KernelError: as before."""


Factory = Callable[[Kernel, TrampolineRules, Boot, BpfPrograms, str | None], Design]
"""Makes a design for a kernel that has just booted: code that it adds to the kernel's text was there from the start.
The last argument is the metadata back end, None for the design's own choice.
"""


@dataclass(frozen=True, slots=True)
class DesignInfo:
    """A design as data: its name, what makes it, and what others must know of it. The defaults are those of a bare
    factory.
    """

    name: str
    make: Factory
    links: Literal["any", "multi"] = "any"
    """``"multi"``: programs of multi links alone run by its own code; those of plain links have trampolines."""
    traits: Traits | None = None
    """Its documented differences; None: nothing is documented, and tests must be given traits."""
    metadata: tuple[str, ...] | None = None
    """Metadata back ends to choose from, its own choice first; None: what is asked for goes to ``make`` unchecked."""
    looks_up: str = ""
    """The back end in which callers look up every function; empty where they look up what they must, or nothing."""
    sound: bool = True
    """Free of known defects; others are left out where every design must pass."""
    meets_preempted: bool = False
    """Programs that were detached meanwhile may run for a task that was preempted on the way to them."""

    def found_by(self, metadata: str | None) -> str | None:
        """The back end in which functions are looked up, where ``metadata`` was asked for; None where none is known."""
        return metadata or self.looks_up or None


DesignChoice = str | DesignInfo | Factory
"""A design by its name, as data, or by what makes it."""


class TrampolineDesign:
    """Functions have a ``bpf_trampoline`` each; designs differ in where its image comes from and in how sites are
    patched, both of which ``trampolines`` knows.
    """

    def __init__(self, name: str, trampolines: Trampolines) -> None:
        self.name, self.trampolines = name, trampolines

    def check(self, target: TraceTarget, prog: BpfProg) -> None:
        """See Design."""
        self.trampolines.images.check(target, prog)

    def attach(self, entry: LinkEntry) -> None:
        """See Design."""
        with self._held((entry,)) as (trampoline,):
            trampoline.link_prog(entry.link)

    def detach(self, entry: LinkEntry) -> None:
        """See Design."""
        trampoline = self.trampolines.of(entry.target)
        trampoline.unlink_prog(entry.link)
        self._release((entry,), (trampoline,))

    def attach_multi(self, entries: Sequence[LinkEntry], progress: Callable[[], object]) -> None:
        """See Design."""
        check_distinct([entry.target for entry in entries])
        with self._held(entries) as trampolines:
            attach_multi([*zip(trampolines, [entry.link for entry in entries], strict=True)], progress)

    def detach_multi(self, entries: Sequence[LinkEntry], progress: Callable[[], object]) -> None:
        """See Design."""
        trampolines = [self.trampolines.of(entry.target) for entry in entries]
        detach_multi([*zip(trampolines, [entry.link for entry in entries], strict=True)], progress)
        self._release(entries, trampolines)

    @contextmanager
    def _held(self, entries: Sequence[LinkEntry]) -> Iterator[list[BpfTrampoline]]:
        """The trampolines of entries, with what their images need; given back if the block raises."""
        trampolines = self.trampolines.get(*[entry.target for entry in entries])
        try:
            self.trampolines.images.hold(entries)
            try:
                yield trampolines
            except BaseException:
                self.trampolines.images.release(entries)
                raise
        except BaseException as error:
            self.trampolines.put(*trampolines)
            if isinstance(error, DisplacementError):
                raise KernelError(error.errno, str(error)) from error
            raise

    def _release(self, entries: Sequence[LinkEntry], trampolines: Sequence[BpfTrampoline]) -> None:
        with suppress(KernelError):
            self.trampolines.images.release(entries)
        self.trampolines.put(*trampolines)

    def time_programs(self, enabled: bool) -> None:
        """See Design."""
        images = self.trampolines.images
        if images.time_programs(enabled):
            try:
                remake(list(self.trampolines))
            except BaseException:
                images.time_programs(not enabled)
                raise
