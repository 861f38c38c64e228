"""Traits of a design: its documented differences, as data, from which a model says what will be seen."""

from dataclasses import dataclass
from enum import Enum
from errno import EBUSY, EINVAL

from trampoline.bpf.uapi import AttachType
from trampoline.rules import TrampolineRules


class Order(Enum):
    """Which of two programs of a kind on one function runs first."""

    NEWEST_FIRST = "newest first"
    OLDEST_FIRST = "oldest first"


class AfterSleep(Enum):
    """Which programs run behind an original function that slept, when programs came or went meanwhile."""

    NONE = "none"
    """The image that the call is in is on its way out: it jumps over them (``bpf_tramp_image_put``)."""
    CURRENT = "current"
    """Those that are there then: metadata is read anew."""


@dataclass(frozen=True, slots=True)
class Traits:
    """What is documented of a design (docs/designs.md). The defaults are a trampoline's."""

    order: Order = Order.NEWEST_FIRST
    after_sleep: AfterSleep = AfterSleep.NONE
    max_slots: int = 12
    """Argument slots at most; a release may take fewer."""
    struct_on_stack: bool = True
    """Structs by value may be on the stack while registers are free."""
    sessions: bool = True
    mixes_plain_and_multi: bool = True
    plain: "Traits | None" = None
    """What holds of functions with plain links, where the design leaves those to trampolines."""
    shares_sites: bool = True
    """Function tracers and livepatch may be on its functions."""
    count_is_actual: bool = True
    """``bpf_get_func_arg_cnt`` is the function's own count."""
    program_twice: int = EBUSY
    """Error code for a program that the function has already."""
    function_twice: int = EINVAL
    """And for a function that a link names twice."""
    site_taken: int = EINVAL
    """And for a function whose site has somebody else's direct caller."""
    times_by_image: bool = False
    """Images are made anew when run-time statistics are turned on or off; one that counts runs counts all of them."""
    accounts_calls: bool = True
    """Calls are accounted on boots that want that."""
    keeps: str = ""
    """What the name of the one object begins with that stays when all programs have gone: a table that has grown."""
    needs_padding: bool = False
    """Only kernels with padding in front of functions will do."""
    image_per_function: bool = False
    """A function with programs has exactly one image of its own."""

    def runs_on(self, rules: TrampolineRules) -> bool:
        """Whether multi links work at all."""
        return not self.needs_padding or rules.entry.padding > 0

    def slots(self, rules: TrampolineRules) -> int:
        """Argument slots at most under these rules."""
        return min(self.max_slots, rules.max_slots)

    def kinds(self, rules: TrampolineRules) -> tuple[AttachType, ...]:
        """Attach types that programs may have under these rules."""
        kinds = [AttachType.TRACE_FENTRY, AttachType.TRACE_FEXIT, AttachType.MODIFY_RETURN]
        if self.sessions and rules.fsession:
            kinds.append(AttachType.TRACE_FSESSION)
        return tuple(kinds)


KEPT_TABLE = "kfunc_md_array of"
"""The name of a table of metadata that has grown begins so (``Traits.keeps``)."""
