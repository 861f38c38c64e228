"""The state of a kernel's links, and common parts of the kinds of links."""

from collections import Counter
from dataclasses import dataclass, field
from typing import NoReturn, Protocol

from emu.kernel.text.entry import EntryLayout
from trampoline.bpf.program import BpfProgram
from trampoline.bpf.verifier.errors import VerifierError
from trampoline.bpf.verifier.kernel_view import KernelView
from trampoline.bpf.verifier.load.bpf_prog_load import VerifiedLoad

Site = tuple[BpfProgram | None, int]
"""The function of a trampoline: the target program (None for the kernel), and the BTF id."""


class LinkRules(Protocol):
    """Limits that a release's trampolines set for its links."""

    @property
    def max_links(self) -> int:
        """BPF_MAX_TRAMP_LINKS: maximum number of programs on one function, all kinds together."""
        ...

    @property
    def max_slots(self) -> int:
        """Maximum number of argument slots."""
        ...

    @property
    def entry(self) -> EntryLayout:
        """Layout of a function's entry: the offset of its patch site."""
        ...


@dataclass(slots=True, eq=False)
class KernelLinks:
    """The links of one kernel. ``rules``: its release's ``trampoline.rules.TrampolineRules``."""

    kernel: KernelView
    rules: LinkRules
    programs: Counter[Site] = field(default_factory=Counter)
    """Number of programs on each function, all kinds together; an fsession program counts twice."""
    extensions: set[Site] = field(default_factory=set)
    """Functions of programs that are replaced by extensions."""


def site_of(loaded: VerifiedLoad) -> Site | None:
    """The site of a program's load-time target; None without one."""
    return None if loaded.target is None else (loaded.target.prog, loaded.target.btf_id)


def refuse(errno: int, why: str) -> NoReturn:
    """Raise VerifierError."""
    raise VerifierError(errno, why)
