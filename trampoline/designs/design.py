"""What a design is: a way for programs to get onto functions and run there."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol

from asm import DisplacementError
from emu.kernel.errors import KernelError
from emu.kernel.kernel import Kernel
from trampoline.bpf.boot import Boot
from trampoline.bpf.prog import BpfProg, BpfPrograms
from trampoline.rules import TrampolineRules
from trampoline.update.bpf_trampoline import Trampolines
from trampoline.update.multi import MultiEntry, attach_multi, check_distinct, detach_multi, remake
from trampoline.update.target import TraceTarget, TrampLink


class LinkEntry(NamedTuple):
    """One function of a link, and the program's place on it."""

    target: TraceTarget
    link: TrampLink


class Design(Protocol):
    """How programs get onto functions. ``attach`` and ``detach`` do all entries or, when they raise, none."""

    name: str
    trampolines: Trampolines
    """The per-function trampolines: for targets that are no ftrace sites, and where the design has such."""

    def check(self, target: TraceTarget, prog: BpfProg) -> None:
        """Refuse what the design can't do. KernelError."""

    def attach(self, entries: Sequence[LinkEntry], progress: Callable[[], object]) -> None:
        """Put a program on functions: of a multi link, or of a plain one on its single target.

        ``progress`` is called once for each function. KernelError: text, tables, counts and memory are as before.
        """

    def detach(self, entries: Sequence[LinkEntry], progress: Callable[[], object]) -> None:
        """Take it off again."""

    def time_programs(self, enabled: bool) -> None:
        """Keep run-time statistics of programs, or keep them no more. KernelError: as before."""


Factory = Callable[[Kernel, TrampolineRules, Boot, BpfPrograms, str | None], Design]
"""Makes a design for a kernel that has just booted: code that it adds to the kernel's text was there from the start.
The last argument is the metadata back end, None for the design's own choice.
"""


class TrampolineDesign:
    """Functions have a ``bpf_trampoline`` each; designs differ in where its image comes from and in how sites are
    patched, both of which ``trampolines`` knows.
    """

    def __init__(self, name: str, trampolines: Trampolines) -> None:
        self.name, self.trampolines = name, trampolines

    def check(self, target: TraceTarget, prog: BpfProg) -> None:
        """See Design."""
        self.trampolines.images.check(target, prog)

    def attach(self, entries: Sequence[LinkEntry], progress: Callable[[], object]) -> None:
        """See Design."""
        targets = [entry.target for entry in entries]
        check_distinct(targets)
        trampolines = self.trampolines.get(*targets)
        held = [MultiEntry(trampoline, entry.link) for trampoline, entry in zip(trampolines, entries, strict=True)]
        try:
            self.trampolines.images.hold(held)
            try:
                attach_multi(self.trampolines.sites, held, progress)
            except BaseException:
                self.trampolines.images.release(held)
                raise
        except BaseException as error:
            self.trampolines.put(*trampolines)
            if isinstance(error, DisplacementError):
                raise KernelError(error.errno, str(error)) from error
            raise

    def detach(self, entries: Sequence[LinkEntry], progress: Callable[[], object]) -> None:
        """See Design."""
        held = [MultiEntry(self.trampolines.of(entry.target), entry.link) for entry in entries]
        detach_multi(self.trampolines.sites, held, progress)
        with suppress(KernelError):
            self.trampolines.images.release(held)
        self.trampolines.put(*[entry.trampoline for entry in held])

    def time_programs(self, enabled: bool) -> None:
        """See Design."""
        images = self.trampolines.images
        if images.time_programs(enabled):
            try:
                remake(self.trampolines.sites, list(self.trampolines))
            except BaseException:
                images.time_programs(not enabled)
                raise
