"""What a caller of the ``specialised`` design depends on: its programs, and where arguments come from."""

from dataclasses import dataclass
from typing import NamedTuple

from trampoline.bpf.btf.func_model import FuncModel
from trampoline.bpf.prog import NOTHING, Uses


@dataclass(frozen=True, slots=True)
class CallerProg:
    """A program as the caller runs it. ``slot``: where a function's record holds the cookie; None: it is ``cookie``."""

    name: str
    prog: int
    bpf_func: int
    active: int
    stats: int
    sleepable: bool = False
    guarded: bool = True
    """It does not run inside itself on one CPU."""
    uses: Uses = NOTHING
    cookie: int = 0
    slot: int | None = None
    is_session: bool = False
    timed: bool = True
    """Its runs are counted while statistics are on."""


@dataclass(frozen=True, slots=True)
class CallerSpec:
    """What a caller depends on, beside how the kernel was built and booted.

    ``places``: for each argument slot, in the order of the context, whether it comes in a register, and which
    register or word of the stack. ``narrow``: the only slot on the stack has 4 bytes at most. ``ip``: the traced
    function's address where nothing else tells it. ``thunk``: it is reached through a thunk, which left the function in
    r10, its record in rax, and on the stack what a call at the site would have left there. ``stats``: statistics
    are on.
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
        """All of them in the order in which they are called."""
        return self.fentry + self.fmod_ret + self.fexit

    @property
    def calls_original(self) -> bool:
        """Whether the function's return comes back to the caller."""
        return bool(self.fmod_ret or self.fexit)

    @property
    def counted(self) -> bool:
        """Whether tasks may sleep while they are in it, so that it counts them."""
        return self.calls_original or any(prog.sleepable for prog in self.progs)

    @property
    def looks_up(self) -> bool:
        """Whether it needs the function's record."""
        return any(prog.slot is not None and prog.uses.run_ctx for prog in self.progs)


class Places(NamedTuple):
    """Where the argument slots of a function come from; see ``CallerSpec``."""

    places: tuple[tuple[bool, int], ...]
    narrow: bool

    @classmethod
    def of(cls, model: FuncModel) -> "Places":
        """Those of a prototype."""
        places = [
            (in_regs, first + word)
            for arg, (first, in_regs) in zip(model.args, model.placement(), strict=True)
            for word in range(arg.slots)
        ]
        # The kernel looks at the size of the last argument, whichever one is on the stack (clean_stack_garbage).
        return cls(tuple(places), sum(not in_regs for in_regs, _ in places) == 1 and model.args[-1].size <= 4)
