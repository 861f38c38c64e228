"""What attaching gives: a link, which holds its program and its trampolines until it is detached."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from errno import EINVAL
from typing import TYPE_CHECKING

from trampoline.bpf_trampoline import BpfTrampoline, TrampLink
from trampoline.errors import KernelError, PrototypeError, TrampolineError
from trampoline.multi import MultiEntry, detach_multi
from trampoline.prog import BpfProg

if TYPE_CHECKING:
    from trampoline.lab import Tracing



def no_progress() -> None:
    """Progress that nobody looks at."""


class Link:
    """``struct bpf_tracing_link``: a program on one target. It holds the program and the trampoline."""

    def __init__(self, lab: "Tracing", trampoline: BpfTrampoline, link: TrampLink) -> None:
        self._lab, self._trampoline, self._link = lab, trampoline, link
        self.attached = True

    @property
    def prog(self) -> BpfProg:
        """The program."""
        return self._link.prog

    @property
    def trampoline(self) -> BpfTrampoline:
        """The trampoline that runs it."""
        return self._trampoline

    def detach(self) -> None:
        """Take the program off (``bpf_tracing_link_release``). Detaching twice is a TrampolineError."""
        if not self.attached:
            raise TrampolineError(f"{self.prog.name} is detached already")
        self._trampoline.unlink_prog(self._link)
        self.attached = False
        self._lab.trampolines.put(self._trampoline)
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
        self, lab: "Tracing", prog: BpfProg, entries: Sequence[MultiEntry], skipped: Sequence[Skipped]
    ) -> None:
        self._lab, self.prog, self._entries = lab, prog, tuple(entries)
        self.skipped = tuple(skipped)
        self.attached = True

    @property
    def functions(self) -> tuple[str, ...]:
        """The functions that it is on, in the order given."""
        return tuple(entry.trampoline.target.name for entry in self._entries)

    def detach(self, progress: Callable[[], object] | None = None) -> None:
        """Take the program off all functions. Detaching twice is a TrampolineError."""
        if not self.attached:
            raise TrampolineError(f"{self.prog.name} is detached already")
        detach_multi(self._lab.trampolines.sites, self._entries, progress or no_progress)
        self.attached = False
        for entry in self._entries:
            self._lab.trampolines.put(entry.trampoline)
        self._lab.programs.put(self.prog)
        self._lab.kernel.rcu.settle()

    def __enter__(self) -> "MultiLink":
        return self

    def __exit__(self, *exc: object) -> None:
        if self.attached:
            self.detach()
