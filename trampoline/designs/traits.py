"""Traits of a design: its documented differences as data, the input of the reference model."""

from dataclasses import dataclass
from enum import Enum
from errno import EBUSY, EINVAL

from trampoline.bpf.uapi import AttachType
from trampoline.rules import TrampolineRules


class Order(Enum):
    """Order of two programs of one kind on one function."""

    NEWEST_FIRST = "newest first"
    OLDEST_FIRST = "oldest first"


class AfterSleep(Enum):
    """Programs that run after an original that slept while programs were attached or detached."""

    NONE = "none"
    """None: the call's image is released and skips them (``trampoline.c:bpf_tramp_image_put()``)."""
    CURRENT = "current"
    """Those attached at that time: metadata is read again."""


@dataclass(frozen=True, slots=True)
class Traits:
    """Documented properties of a design (docs/designs.md). The defaults are those of a trampoline."""

    order: Order = Order.NEWEST_FIRST
    after_sleep: AfterSleep = AfterSleep.NONE
    max_slots: int = 12
    """Maximum number of argument slots; a release may support fewer."""
    struct_on_stack: bool = True
    """Structs by value may be on the stack while registers are free."""
    sessions: bool = True
    mixes_plain_and_multi: bool = True
    plain: "Traits | None" = None
    """Traits of functions with plain links, if the design leaves those to trampolines."""
    shares_sites: bool = True
    """Function tracers and livepatch may be on its functions."""
    count_is_actual: bool = True
    """``bpf_get_func_arg_cnt`` is the function's own count."""
    program_twice: int = EBUSY
    """Error code for a program that the function already has."""
    function_twice: int = EINVAL
    """Error code for a function that a link names twice."""
    site_taken: int = EINVAL
    """Error code for a function whose site has another direct caller."""
    times_by_image: bool = False
    """Images are rebuilt when run-time statistics are turned on or off; an image counts all runs or none."""
    accounts_calls: bool = True
    """Calls are accounted on boots with call-depth tracking."""
    keeps: str = ""
    """Prefix of the name of the one object that stays after all detaches: a table that has grown."""
    needs_padding: bool = False
    """Needs a kernel with padding in front of functions."""
    image_per_function: bool = False
    """Each function with programs has exactly one image of its own."""

    def runs_on(self, rules: TrampolineRules) -> bool:
        """True if multi links work under these rules."""
        return not self.needs_padding or rules.entry.padding > 0

    def slots(self, rules: TrampolineRules) -> int:
        """Maximum number of argument slots under these rules."""
        return min(self.max_slots, rules.max_slots)

    def kinds(self, rules: TrampolineRules) -> tuple[AttachType, ...]:
        """Attach types that programs may have under these rules."""
        kinds = [AttachType.TRACE_FENTRY, AttachType.TRACE_FEXIT, AttachType.MODIFY_RETURN]
        if self.sessions and rules.fsession:
            kinds.append(AttachType.TRACE_FSESSION)
        return tuple(kinds)


KEPT_TABLE = "kfunc_md_array of"
"""Name prefix of a metadata table that has grown (``Traits.keeps``)."""
