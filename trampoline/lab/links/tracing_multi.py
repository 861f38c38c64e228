"""``struct bpf_tracing_multi_link``: one program on many functions (``bpf_tracing_multi_attach``)."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from errno import EINVAL
from typing import TYPE_CHECKING

from trampoline.bpf.errors import KernelError, PrototypeError, TrampolineError
from trampoline.bpf.prog import BpfProg
from trampoline.lab.links.link import Link
from trampoline.update.multi import no_collections
from trampoline.update.target import LinkEntry, TraceTarget, TrampLink

if TYPE_CHECKING:
    from trampoline.lab.lab import Lab


def modules_of(entries: Iterable[LinkEntry]) -> list[str]:
    """The modules that a multi link holds, each once, whatever its design holds."""
    return sorted({entry.target.module for entry in entries} - {""})


@dataclass(frozen=True, slots=True)
class Skipped:
    """A function that a multi link left out; ``errno`` is what it would have been refused with."""

    name: str
    error: KernelError | PrototypeError

    @property
    def errno(self) -> int:
        """A positive error code; an unknown prototype is -EINVAL, as a missing BTF type is."""
        return self.error.errno if isinstance(self.error, KernelError) else EINVAL


class TracingMultiLink(Link):
    """A program on many functions, with a cookie for each. ``skipped``: the functions left out, and why."""

    def __init__(
        self,
        lab: "Lab",
        program: BpfProg,
        targets: Sequence[tuple[TraceTarget, int]],
        skipped: Sequence[Skipped] = (),
    ) -> None:
        super().__init__(lab, program)
        owner, own_cookie = object(), len({cookie for _, cookie in targets}) > 1
        self._entries = tuple(
            LinkEntry(target, TrampLink(program, cookie, owner, own_cookie)) for target, cookie in targets
        )
        self.skipped = tuple(skipped)

    @property
    def functions(self) -> tuple[str, ...]:
        """The functions that it is on, in the order given."""
        return tuple(entry.target.name for entry in self._entries)

    def cookie(self, function: str = "") -> int:
        """See Link."""
        found = [entry for entry in self._entries if function in ("", entry.target.name)]
        if len(found) != 1:
            raise TrampolineError(f"{self.program.name} is on {len(self._entries)} functions, none is {function!r}")
        return found[0].link.cookie

    def _attach(self, progress: Callable[[], object]) -> None:
        modules = self._lab.kernel.modules
        try:
            with ExitStack() as undo:
                for module in modules_of(self._entries):
                    modules.get(module)
                    undo.callback(modules.put, module)
                self._lab.design.attach_multi(self._entries, progress)
                undo.pop_all()
        except BaseException:
            self._lab.kernel.rcu.settle()
            raise

    def _release(self, progress: Callable[[], object]) -> None:
        with no_collections():
            self._lab.design.detach_multi(self._entries, progress)
        for module in modules_of(self._entries):
            self._lab.kernel.modules.put(module)
