"""What the words of a function's stack frame are called: kept with its image by whoever made it."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class StackNames:
    """Names of a frame's words. Distances are bytes from the address behind the return address, so that the return
    address is at -8, and arguments that the caller put on the stack are at 0 and above.
    """

    fixed: Mapping[int, str] = field(default_factory=dict)
    """By distance: words that have one meaning as long as they are part of the frame."""
    pushed: Mapping[int, str] = field(default_factory=dict)
    """By the address of the push instruction: words that have it until they are popped."""
    replaced_at: int | None = None
    """The instruction that puts the return value where the return address was; the caller's is above it then."""
