"""Names of the words of a function's stack frame, kept with its image."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class StackNames:
    """Names of a frame's words. Distances are bytes from the address after the return address: the return address is
    at -8, arguments that the caller put on the stack are at 0 and above.
    """

    fixed: Mapping[int, str] = field(default_factory=dict)
    """By distance: names of words that are valid for the whole frame."""
    pushed: Mapping[int, str] = field(default_factory=dict)
    """By address of the push instruction: names that are valid until the word is popped."""
    replaced_at: int | None = None
    """Instruction that stores the return value over the return address; the caller's is one word above it then."""
