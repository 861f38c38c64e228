"""``struct bpf_link``: the interface of every kind of link, and what all kinds have in common (``syscall.c``)."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from errno import EINVAL
from typing import TYPE_CHECKING, Self

from trampoline.bpf.errors import KernelError, TrampolineError
from trampoline.bpf.prog import BpfProg

if TYPE_CHECKING:
    from trampoline.lab.lab import Lab


def no_progress() -> None:
    """Does nothing: the default of ``progress``."""


class Link(ABC):
    """A program on one or more targets. While it is attached it holds a reference of the program.

    A kind implements ``functions``, ``cookie``, ``_attach`` and ``_release``, and overrides ``update`` where its
    ``bpf_link_ops`` have ``update_prog``.
    """

    def __init__(self, lab: "Lab", program: BpfProg) -> None:
        self._lab, self.program = lab, program
        self.attached = False

    @property
    @abstractmethod
    def functions(self) -> tuple[str, ...]:
        """The functions or programs that it is on, in the order given."""

    @abstractmethod
    def cookie(self, function: str = "") -> int:
        """The cookie on one of ``functions``, by its name; of a link on one of them the name may be left out.

        TrampolineError for a function that it is not on.
        """

    def attach(self, progress: Callable[[], object] = no_progress) -> None:
        """Put the program on all functions or, on any error, on none (``BPF_LINK_CREATE``).

        ``progress`` is called once for each function. TrampolineError if it is attached; KernelError as
        ``Design.attach`` and ``Design.attach_multi``.
        """
        if self.attached:
            raise TrampolineError(f"{self.program.name} is attached already")
        self._attach(progress)
        self.attached = True
        self._lab.programs.get(self.program)
        self._lab.kernel.rcu.settle()

    def update(self, program: BpfProg, *, replaces: BpfProg | None = None) -> None:
        """Replace the program (``BPF_LINK_UPDATE``), if it is ``replaces`` (``BPF_F_REPLACE``).

        KernelError: -EINVAL for kinds without ``update_prog``, as tracing links and all other probes in every release
        (``syscall.c:link_update()``).
        """
        raise KernelError(EINVAL, f"{type(self).__name__}: {self.program.name} can't be replaced by {program.name}")

    def detach(self, progress: Callable[[], object] = no_progress) -> None:
        """Take the program off all functions: the last reference of the link is dropped (``bpf_link_free``).

        TrampolineError if it is detached already.
        """
        if not self.attached:
            raise TrampolineError(f"{self.program.name} is detached already")
        self._release(progress)
        self.attached = False
        self._lab.programs.put(self.program)
        self._lab.kernel.rcu.settle()

    @abstractmethod
    def _attach(self, progress: Callable[[], object]) -> None:
        """Put the program on all functions, or raise; nothing is changed then."""

    @abstractmethod
    def _release(self, progress: Callable[[], object]) -> None:
        """Take it off (``bpf_link_ops.release``)."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if self.attached:
            self.detach()
