"""Specification of a caller of the ``specialised`` design: its programs and its argument locations."""

from dataclasses import dataclass
from typing import NamedTuple

from trampoline.bpf.btf.func_model import FuncModel
from trampoline.bpf.prog import NOTHING, Uses


@dataclass(frozen=True, slots=True)
class CallerProg:
    """A program of a caller. ``slot``: index of its cookie in the function's record; None: the constant ``cookie``."""

    name: str
    prog: int
    bpf_func: int
    active: int
    stats: int
    sleepable: bool = False
    guarded: bool = True
    """Has the recursion guard: does not run inside itself on one CPU."""
    uses: Uses = NOTHING
    cookie: int = 0
    slot: int | None = None
    is_session: bool = False
    timed: bool = True
    """Its run time is counted while statistics are on."""


@dataclass(frozen=True, slots=True)
class CallerSpec:
    """All inputs of a caller's code besides the kernel's configuration and boot.

    ``places``: for each argument slot, in the order of the context, (True, register number) or (False, stack word).
    ``narrow``: the only slot on the stack has 4 bytes at most. ``ip``: the traced function's address, if the return
    address does not identify it. ``thunk``: reached through a thunk, which leaves the function in r10, its record in
    rax, and on the stack what a call at the site would leave there. ``stats``: statistics are on.
    """

    places: tuple[tuple[bool, int], ...]
    narrow: bool = False
    fentry: tuple[CallerProg, ...] = ()
    fmod_ret: tuple[CallerProg, ...] = ()
    fexit: tuple[CallerProg, ...] = ()
    ip: int | None = None
    thunk: bool = False
    stats: bool = False

    @property
    def progs(self) -> tuple[CallerProg, ...]:
        """All programs in the order of their calls."""
        return self.fentry + self.fmod_ret + self.fexit

    @property
    def calls_original(self) -> bool:
        """True if the caller calls the original function."""
        return bool(self.fmod_ret or self.fexit)

    @property
    def counted(self) -> bool:
        """True if tasks may sleep in it, so that it counts them."""
        return self.calls_original or any(prog.sleepable for prog in self.progs)

    @property
    def looks_up(self) -> bool:
        """True if it needs the function's cookie record."""
        return any(prog.slot is not None and prog.uses.run_ctx for prog in self.progs)


class Places(NamedTuple):
    """Argument locations of a function; see ``CallerSpec``."""

    places: tuple[tuple[bool, int], ...]
    narrow: bool

    @classmethod
    def of(cls, model: FuncModel) -> "Places":
        """Argument locations of a prototype."""
        places = [
            (in_regs, first + word)
            for arg, (first, in_regs) in zip(model.args, model.placement(), strict=True)
            for word in range(arg.slots)
        ]
        # The kernel checks the size of the last argument, even if another one is on the stack (clean_stack_garbage()).
        return cls(tuple(places), sum(not in_regs for in_regs, _ in places) == 1 and model.args[-1].size <= 4)
