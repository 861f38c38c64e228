"""The series' own defects, each behind a switch."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SeedDefects:
    """Which defects of the posted series are kept. None by default: the repaired series."""

    null_result: bool = False
    """A look-up that finds nothing goes on as if it had found metadata, at address 0."""
    resize_copies: bool = False
    """A resize makes every metadata object anew, so that a call under way keeps the old one; a program that is unlinked
    later is unlinked from the copy alone. The old table is freed after an RCU grace period, which does not wait for a
    CPU that was preempted outside a read section."""
    unlink_stops: bool = False
    """Unlinking a program from several functions ends with -EINVAL at the first one that does not have it: the rest
    stays linked, and no reference is put. A link that fails is taken back that way too."""
    narrow_counters: bool = False
    """``bpf_prog_cnt`` (8 bits) and ``users`` (16 bits) wrap, and there is no limit on a function's programs."""

    @classmethod
    def as_posted(cls) -> "SeedDefects":
        """All of them: the series as it was posted."""
        return cls(null_result=True, resize_copies=True, unlink_stops=True, narrow_counters=True)
