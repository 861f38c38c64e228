"""What attaching gives: a link, which holds its program and its trampolines until it is detached."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from errno import EINVAL
from typing import TYPE_CHECKING

from trampoline.bpf.errors import KernelError, PrototypeError, TrampolineError
from trampoline.bpf.prog import BpfProg
from trampoline.designs import Design, LinkEntry
from trampoline.update.bpf_trampoline import BpfTrampoline
from trampoline.update.multi import no_collections

if TYPE_CHECKING:
    from trampoline.lab.lab import Lab


def no_progress() -> None:
    """Progress that nobody looks at."""


def modules_of(entries: Iterable[LinkEntry]) -> list[str]:
    """The modules that a multi link holds, each once, whatever its design holds."""
    return sorted({entry.target.module for entry in entries} - {""})


class Link:
    """``struct bpf_tracing_link``: a program on one target. It holds the program and what runs it there."""

    def __init__(self, lab: "Lab", design: Design, entry: LinkEntry) -> None:
        self._lab, self._design, self._entry = lab, design, entry
        self._trampoline = design.trampolines.find(entry.target)
        self.attached = True

    @property
    def prog(self) -> BpfProg:
        """The program."""
        return self._entry.link.prog

    @property
    def functions(self) -> tuple[str, ...]:
        """What it is on: one function or program."""
        return (self._entry.target.name,)

    @property
    def trampoline(self) -> BpfTrampoline:
        """The trampoline that runs it. TrampolineError where the design has none for a function."""
        if self._trampoline is None:
            raise TrampolineError(f"{self._design.name} has no trampoline for {self._entry.target.name}")
        return self._trampoline

    def detach(self) -> None:
        """Take the program off (``bpf_tracing_link_release``). Detaching twice is a TrampolineError."""
        if not self.attached:
            raise TrampolineError(f"{self.prog.name} is detached already")
        self._design.detach((self._entry,), no_progress)
        self.attached = False
        self._lab.programs.put(self.prog)
        self._lab.kernel.rcu.settle()

    def __enter__(self) -> "Link":
        return self

    def __exit__(self, *exc: object) -> None:
        if self.attached:
            self.detach()


@dataclass(frozen=True, slots=True)
class Skipped:
    """A function that a multi link left out; ``errno`` is what it would have been refused with."""

    name: str
    error: KernelError | PrototypeError

    @property
    def errno(self) -> int:
        """A positive error code; an unknown prototype is -EINVAL, as a missing BTF type is."""
        return self.error.errno if isinstance(self.error, KernelError) else EINVAL


class MultiLink:
    """``struct bpf_tracing_multi_link``: one program on many functions. ``skipped`` says what was left out, and why."""

    def __init__(
        self, lab: "Lab", prog: BpfProg, entries: Sequence[LinkEntry], skipped: Sequence[Skipped]
    ) -> None:
        self._lab, self.prog, self._entries = lab, prog, tuple(entries)
        self.skipped = tuple(skipped)
        self.attached = True

    @property
    def functions(self) -> tuple[str, ...]:
        """The functions that it is on, in the order given."""
        return tuple(entry.target.name for entry in self._entries)

    def detach(self, progress: Callable[[], object] | None = None) -> None:
        """Take the program off all functions. Detaching twice is a TrampolineError."""
        if not self.attached:
            raise TrampolineError(f"{self.prog.name} is detached already")
        with no_collections():
            self._lab.design.detach(self._entries, progress or no_progress)
        self.attached = False
        for module in modules_of(self._entries):
            self._lab.kernel.modules.put(module)
        self._lab.programs.put(self.prog)
        self._lab.kernel.rcu.settle()

    def __enter__(self) -> "MultiLink":
        return self

    def __exit__(self, *exc: object) -> None:
        if self.attached:
            self.detach()
