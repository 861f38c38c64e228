"""What a program means for the call of the function that it is attached to.

The rules of ``__arch_prepare_bpf_trampoline`` and ``bpf_trampoline_update``: a trampoline calls the original itself
when some program runs behind it or may replace its return value; otherwise it returns into it.
"""

from dataclasses import dataclass
from enum import Enum

from trampoline.attach import Kind, kind_of
from trampoline.bpf.uapi import AttachType


class Result(Enum):
    """What the caller of a traced function gets."""

    ORIGINAL = "original"
    """What the function returned."""
    PROGRAM = "program"
    """What the program returned: the function did not run."""
    ORIGINAL_UNLESS_SKIPPED = "original unless skipped"
    """What the function returned, or the first value other than 0 that a program returned, which kept it from running
    and the fmod_ret programs behind from running too.
    """


@dataclass(frozen=True, slots=True)
class Origin:
    """What becomes of the original call where a program is attached."""

    called: bool
    """The trampoline calls the original itself (BPF_TRAMP_F_CALL_ORIG); else it returns into it, or it is replaced."""
    skippable: bool
    """A program may keep it from running."""
    result: Result


RETURNED_INTO = Origin(called=False, skippable=False, result=Result.ORIGINAL)
"""fentry: the program runs, then the function as if nobody traced it."""
OBSERVED = Origin(called=True, skippable=False, result=Result.ORIGINAL)
"""fexit, fsession, LSM programs on hooks that return nothing: the original always runs, its value is only read."""
DECIDED = Origin(called=True, skippable=True, result=Result.ORIGINAL_UNLESS_SKIPPED)
"""fmod_ret and LSM programs: 0 lets the original run, any other value is the result in its place."""
REPLACED = Origin(called=False, skippable=True, result=Result.PROGRAM)
"""Program extensions: the function of the target program never runs."""

_BY_KIND = {
    Kind.FENTRY: RETURNED_INTO,
    Kind.FEXIT: OBSERVED,
    Kind.FSESSION: OBSERVED,
    Kind.MODIFY_RETURN: DECIDED,
}


@dataclass(frozen=True, slots=True)
class _Returns:
    returns_void: bool


def origin_of(attach: AttachType, *, returns_void: bool = False) -> Origin:
    """What a program of an attach type makes of the call of its function; ``returns_void``: the function's."""
    return _BY_KIND[kind_of(attach, _Returns(returns_void))]


def combined(origins: list[Origin]) -> Origin:
    """What several programs on one function make of it; none at all leave it alone."""
    for origin in (REPLACED, DECIDED, OBSERVED):
        if origin in origins:
            return origin
    return RETURNED_INTO
