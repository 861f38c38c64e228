"""What a model must know of a design to say what will be seen: its documented differences, as data."""

from dataclasses import dataclass, replace
from enum import Enum
from errno import EBUSY, EEXIST, EINVAL

from trampoline.bpf.uapi import AttachType
from trampoline.releases.kernel_release import KernelRelease


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

    def runs_on(self, release: KernelRelease) -> bool:
        """Whether multi links work on a release at all."""
        return not self.needs_padding or release.entry.padding > 0

    def slots(self, release: KernelRelease) -> int:
        """Argument slots at most on a release."""
        return min(self.max_slots, release.trampoline.max_slots)

    def kinds(self, release: KernelRelease) -> tuple[AttachType, ...]:
        """Attach types that programs may have on a release."""
        kinds = [AttachType.TRACE_FENTRY, AttachType.TRACE_FEXIT, AttachType.MODIFY_RETURN]
        if self.sessions and release.fsession:
            kinds.append(AttachType.TRACE_FSESSION)
        return tuple(kinds)


_TABLE = "kfunc_md_array of"
_SEED = Traits(
    order=Order.OLDEST_FIRST,
    after_sleep=AfterSleep.CURRENT,
    max_slots=6,
    sessions=False,
    mixes_plain_and_multi=False,
    shares_sites=False,
    program_twice=EEXIST,
    function_twice=EEXIST,
    site_taken=EBUSY,
    accounts_calls=False,
    keeps=_TABLE,
    plain=Traits(),
)
TRAITS = {
    "per-function": Traits(image_per_function=True, site_taken=EBUSY),
    "batched": Traits(image_per_function=True),
    "generic": Traits(struct_on_stack=False, count_is_actual=False),
    "specialised": Traits(times_by_image=True, keeps=_TABLE),
    "tracing-multi-v2": _SEED,
    "tracing-multi-v2-fixed": _SEED,
    "tracing-multi-v1": replace(_SEED, needs_padding=True),
}
"""Traits of the designs that tramplab has."""
