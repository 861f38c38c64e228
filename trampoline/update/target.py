"""Traced targets, and links of programs on them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from trampoline.bpf.btf.func_model import FuncModel, slots_of
from trampoline.bpf.prog import BpfProg


class TraceTarget(NamedTuple):
    """A kernel function or BPF program to trace. ``key`` is that of its trampoline
    (``bpf_verifier.h:bpf_trampoline_compute_key()``).

    ``prototype``: the function model, or a callable that reads it on demand: of 50,000 functions few need it.
    ``arg_sizes`` is known without it.
    """

    name: str
    address: int
    prototype: FuncModel | Callable[[], FuncModel]
    key: int
    arg_sizes: tuple[int, ...]
    """Size in bytes of each argument."""
    module: str = ""
    site_offset: int | None = None
    """Distance in bytes from its address to its patch site, if different from the release's."""
    tail_call_reachable: bool = False
    """A BPF program that tail calls can reach: its trampoline must carry the tail-call counter."""

    @property
    def model(self) -> FuncModel:
        """Function model, the generator's input."""
        return self.prototype if isinstance(self.prototype, FuncModel) else self.prototype()

    @property
    def nr_regs(self) -> int:
        """Number of argument slots."""
        return slots_of(self.arg_sizes)

    @property
    def returns_void(self) -> bool:
        """True for a void function."""
        return self.model.returns_void


@dataclass(eq=False, slots=True)
class TrampLink:
    """``struct bpf_tramp_link``: a program in a trampoline's list. ``linked``: not ``hlist_unhashed()``."""

    prog: BpfProg
    cookie: int = 0
    owner: object = None
    """Identity shared by the functions of one multi link; None for a plain link."""
    own_cookie: bool = False
    """True if the functions of its link have different cookies."""
    cookie_slot: int | None = None
    """Index of the cookie in the function's cookie record; None if it has none there."""
    linked: bool = False


class LinkEntry(NamedTuple):
    """One function of a link: target and link."""

    target: TraceTarget
    link: TrampLink
