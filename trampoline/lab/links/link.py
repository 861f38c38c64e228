"""``struct bpf_link``: the interface and common part of every kind of link (``syscall.c``)."""

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
    """A program on one or more targets. An attached link holds a reference to the program.

    A kind implements ``functions``, ``cookie``, ``_attach`` and ``_release``, and overrides ``update`` if its
    ``bpf_link_ops`` have ``update_prog``.
    """

    def __init__(self, lab: "Lab", program: BpfProg) -> None:
        self._lab, self.program = lab, program
        self.attached = False

    @property
    @abstractmethod
    def functions(self) -> tuple[str, ...]:
        """Names of its functions or programs, in the order given."""

    @abstractmethod
    def cookie(self, function: str = "") -> int:
        """Cookie on one of ``functions``, by name; the name of a single function may be omitted.

        TrampolineError for a function that it is not attached to.
        """

    def attach(self, progress: Callable[[], object] = no_progress) -> None:
        """Attaches the program to all functions or, on any error, to none (``BPF_LINK_CREATE``).

        ``progress`` is called once for each function. TrampolineError if it is already attached; KernelError as
        ``Design.attach`` and ``Design.attach_multi``.
        """
        if self.attached:
            raise TrampolineError(f"{self.program.name} is already attached")
        self._attach(progress)
        self.attached = True
        self._lab.programs.get(self.program)
        self._lab.kernel.rcu.settle()

    def update(self, program: BpfProg, *, replaces: BpfProg | None = None) -> None:
        """Replaces the program (``BPF_LINK_UPDATE``), if it is ``replaces`` (``BPF_F_REPLACE``).

        KernelError: -EINVAL for kinds without ``update_prog``: tracing links and all other probes, in every release
        (``syscall.c:link_update()``).
        """
        raise KernelError(EINVAL, f"{type(self).__name__}: {self.program.name} can't be replaced by {program.name}")

    def detach(self, progress: Callable[[], object] = no_progress) -> None:
        """Detaches the program from all functions, as when the link's last reference is dropped
        (``syscall.c:bpf_link_free()``).

        TrampolineError if it is not attached.
        """
        if not self.attached:
            raise TrampolineError(f"{self.program.name} is already detached")
        self._release(progress)
        self.attached = False
        self._lab.programs.put(self.program)
        self._lab.kernel.rcu.settle()

    @abstractmethod
    def _attach(self, progress: Callable[[], object]) -> None:
        """Attaches the program to all functions, or raises and changes nothing."""

    @abstractmethod
    def _release(self, progress: Callable[[], object]) -> None:
        """Detaches the program (``bpf_link_ops.release``)."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if self.attached:
            self.detach()
