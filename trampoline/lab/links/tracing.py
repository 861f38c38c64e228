"""``struct bpf_tracing_link``: a program on one function or program (``bpf_tracing_prog_attach``)."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from trampoline.bpf.errors import TrampolineError
from trampoline.bpf.prog import BpfProg
from trampoline.lab.links.link import Link
from trampoline.update.bpf_trampoline import BpfTrampoline
from trampoline.update.target import LinkEntry, TraceTarget, TrampLink

if TYPE_CHECKING:
    from trampoline.lab.lab import Lab


class TracingLink(Link):
    """A program on one target. KernelError as ``Design.check`` for a target that the design can't take."""

    def __init__(self, lab: "Lab", program: BpfProg, target: TraceTarget, cookie: int = 0) -> None:
        super().__init__(lab, program)
        self._entry = LinkEntry(target, TrampLink(program, cookie))
        self._trampoline: BpfTrampoline | None = None
        lab.design.check(target, program)

    @property
    def functions(self) -> tuple[str, ...]:
        """The one function or program."""
        return (self._entry.target.name,)

    def cookie(self, function: str = "") -> int:
        """See Link."""
        if function not in ("", *self.functions):
            raise TrampolineError(f"{self.program.name} is on {self._entry.target.name}, not on {function}")
        return self._entry.link.cookie

    @property
    def trampoline(self) -> BpfTrampoline:
        """The trampoline that runs it, or ran it. TrampolineError where the target has none."""
        if self._trampoline is None:
            raise TrampolineError(f"{self._lab.design.name} has no trampoline for {self._entry.target.name}")
        return self._trampoline

    def _attach(self, progress: Callable[[], object]) -> None:
        self._lab.design.attach(self._entry)
        self._trampoline = self._lab.design.trampolines.find(self._entry.target)
        progress()

    def _release(self, progress: Callable[[], object]) -> None:
        self._lab.design.detach(self._entry)
        progress()
