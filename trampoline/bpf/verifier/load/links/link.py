"""The state of a kernel's links, and what the kinds have in common."""

from collections import Counter
from dataclasses import dataclass, field
from typing import NoReturn, Protocol

from emu.kernel.text.entry import EntryLayout
from trampoline.bpf.program import BpfProgram
from trampoline.bpf.verifier.errors import VerifierError
from trampoline.bpf.verifier.kernel_view import KernelView
from trampoline.bpf.verifier.load.bpf_prog_load import VerifiedLoad

Site = tuple[BpfProgram | None, int]
"""What a trampoline belongs to: the target program, None for the kernel, and the BTF id."""


class LinkRules(Protocol):
    """Values of a release's trampolines that limit its links."""

    @property
    def max_links(self) -> int:
        """BPF_MAX_TRAMP_LINKS: programs on one function, all kinds together."""
        ...

    @property
    def max_slots(self) -> int:
        """Argument slots at most."""
        ...

    @property
    def entry(self) -> EntryLayout:
        """Layout of a function's entry: the offset of its patch site."""
        ...


@dataclass(slots=True, eq=False)
class KernelLinks:
    """The links of one kernel. ``rules``: ``trampoline.rules.TrampolineRules`` of its release."""

    kernel: KernelView
    rules: LinkRules
    programs: Counter[Site] = field(default_factory=Counter)
    """Programs on each function, of all kinds together; an fsession program counts twice."""
    extensions: set[Site] = field(default_factory=set)
    """Functions of programs that are replaced."""


def site_of(loaded: VerifiedLoad) -> Site | None:
    """The site of the function that a program was loaded for; None without one."""
    return None if loaded.target is None else (loaded.target.prog, loaded.target.btf_id)


def refuse(errno: int, why: str) -> NoReturn:
    """Raises VerifierError."""
    raise VerifierError(errno, why)
