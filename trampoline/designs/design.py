"""Designs: ways to attach programs to functions and run them there; on a kernel, and as data."""

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
    """A design on one kernel. Attach and detach take effect on all functions or, if they raise, on none."""

    name: str
    trampolines: Trampolines
    """Per-function trampolines: for targets that are no ftrace sites, and for designs that use them."""

    def check(self, target: TraceTarget, prog: BpfProg) -> None:
        """Raises KernelError if the design does not support the program on the target."""

    def attach(self, entry: LinkEntry) -> None:
        """Attaches the program of a plain link. KernelError; text, tables, counts and memory are as before then."""

    def detach(self, entry: LinkEntry) -> None:
        """Detaches the program of a plain link."""

    def attach_multi(self, entries: Sequence[LinkEntry], progress: Callable[[], object]) -> None:
        """Attaches a program to the functions of a multi link.

        ``progress`` is called once for each function. KernelError as ``attach``; -EINVAL for a function given twice.
        """

    def detach_multi(self, entries: Sequence[LinkEntry], progress: Callable[[], object]) -> None:
        """Detaches the program of a multi link."""

    def time_programs(self, enabled: bool) -> None:
        """Turns run-time statistics of programs on or off. KernelError; nothing is changed then."""


Factory = Callable[[Kernel, TrampolineRules, Boot, BpfPrograms, str | None], Design]
"""Makes a design for a kernel that has just booted; code that it adds to the kernel's text counts as present from boot.
The last argument is the metadata back end, None for the design's default.
"""


@dataclass(frozen=True, slots=True)
class DesignInfo:
    """A design as data: its name, its factory and its properties. The defaults are those of a bare factory."""

    name: str
    make: Factory
    links: Literal["any", "multi"] = "any"
    """``"multi"``: only programs of multi links run by its own code; those of plain links have trampolines."""
    traits: Traits | None = None
    """Documented differences; None: not documented, tests must pass traits."""
    metadata: tuple[str, ...] | None = None
    """Metadata back ends to choose from, the default first; None: the choice is passed to ``make`` unchecked."""
    looks_up: str = ""
    """Back end in which callers look up every function; empty if they look up only some functions, or none."""
    sound: bool = True
    """Free of known defects; tests that every design must pass skip others."""
    meets_preempted: bool = False
    """A detached program may still run in a task that was preempted before it called the program."""

    def found_by(self, metadata: str | None) -> str | None:
        """Back end in which functions are looked up if ``metadata`` was chosen; None if not known."""
        return metadata or self.looks_up or None


DesignChoice = str | DesignInfo | Factory
"""A design by name, as data, or by its factory."""


class TrampolineDesign:
    """Design with a ``bpf_trampoline`` for each function. Such designs differ in the source of images and in the
    patching of sites, both part of ``trampolines``.
    """

    def __init__(self, name: str, trampolines: Trampolines) -> None:
        self.name, self.trampolines = name, trampolines

    def check(self, target: TraceTarget, prog: BpfProg) -> None:
        self.trampolines.images.check(target, prog)

    def attach(self, entry: LinkEntry) -> None:
        with self._held((entry,)) as (trampoline,):
            trampoline.link_prog(entry.link)

    def detach(self, entry: LinkEntry) -> None:
        trampoline = self.trampolines.of(entry.target)
        trampoline.unlink_prog(entry.link)
        self._release((entry,), (trampoline,))

    def attach_multi(self, entries: Sequence[LinkEntry], progress: Callable[[], object]) -> None:
        check_distinct([entry.target for entry in entries])
        with self._held(entries) as trampolines:
            attach_multi([*zip(trampolines, [entry.link for entry in entries], strict=True)], progress)

    def detach_multi(self, entries: Sequence[LinkEntry], progress: Callable[[], object]) -> None:
        trampolines = [self.trampolines.of(entry.target) for entry in entries]
        detach_multi([*zip(trampolines, [entry.link for entry in entries], strict=True)], progress)
        self._release(entries, trampolines)

    @contextmanager
    def _held(self, entries: Sequence[LinkEntry]) -> Iterator[list[BpfTrampoline]]:
        """Holds the trampolines of entries and the data of their images; releases them if the block raises."""
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
        images = self.trampolines.images
        if images.time_programs(enabled):
            try:
                remake(list(self.trampolines))
            except BaseException:
                images.time_programs(not enabled)
                raise
