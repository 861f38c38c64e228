"""What is traced, and a program's place on it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from trampoline.bpf.btf.func_model import FuncModel, slots_of
from trampoline.bpf.prog import BpfProg


class TraceTarget(NamedTuple):
    """What is traced: a kernel function or a BPF program. ``key`` is its trampoline's
    (``bpf_trampoline_compute_key``).

    ``prototype``: the model, or what reads it: of 50,000 functions few are ever generated for one by one. ``arg_sizes``
    is known before that.
    """

    name: str
    address: int
    prototype: FuncModel | Callable[[], FuncModel]
    key: int
    arg_sizes: tuple[int, ...]
    """Bytes of each argument."""
    module: str = ""
    site_offset: int | None = None
    """Bytes from its address to its patch site, if not as the rules has it."""
    tail_call_reachable: bool = False
    """A BPF program that tail calls can reach: its trampoline must carry the tail-call counter."""

    @property
    def model(self) -> FuncModel:
        """Its prototype as the generator takes it."""
        return self.prototype if isinstance(self.prototype, FuncModel) else self.prototype()

    @property
    def nr_regs(self) -> int:
        """Argument slots."""
        return slots_of(self.arg_sizes)

    @property
    def returns_void(self) -> bool:
        """Whether there is no return value."""
        return self.model.returns_void


@dataclass(eq=False, slots=True)
class TrampLink:
    """``struct bpf_tramp_link``: a program in a trampoline's list. ``linked`` as ``hlist_unhashed`` would deny it."""

    prog: BpfProg
    cookie: int = 0
    owner: object = None
    """What the functions of one multi link have in common; None for a plain link."""
    own_cookie: bool = False
    """The functions of its link have cookies that differ."""
    cookie_slot: int | None = None
    """Where the function's record has the cookie, for callers that find it there."""
    linked: bool = False


class LinkEntry(NamedTuple):
    """One function of a link, and the program's place on it."""

    target: TraceTarget
    link: TrampLink
