"""The series' own defects, each behind a switch."""

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class TracingMultiDefects:
    """Which defects of the posted series are kept. None by default: the repaired series."""

    null_result: bool = False
    """A look-up that finds nothing goes on as if it had found metadata, at address 0. Functions that no look-up finds,
    because they are not 16-byte aligned, are taken all the same."""
    resize_copies: bool = False
    """A resize makes every metadata object anew, so that a call under way keeps the old one; a program that is unlinked
    later is unlinked from the copy alone. The old table is freed after an RCU grace period, which does not wait for a
    CPU that was preempted outside a read section."""
    unlink_stops: bool = False
    """Unlinking a program from several functions ends with -EINVAL at the first one that does not have it: the rest
    stays linked, no reference is put, and sites stay patched."""
    unlink_walks_all: bool = False
    """A link that fails is taken back by unlinking all of its functions, those too that it had not come to: what it
    takes off there, and whose user it drops, is another link's. A function without metadata is a WARN."""
    narrow_counters: bool = False
    """``bpf_prog_cnt`` (8 bits) and ``users`` (16 bits) wrap, and there is no limit on a function's programs."""
    confused_ops_func: bool = False
    """Livepatch asks the ftrace_ops through ``bpf_tramp_ftrace_ops_func``, which takes ``ops->private``, a
    bpf_global_trampoline, for a bpf_trampoline."""
    no_clobbers: bool = False
    """The calls of programs declare no clobbered registers, so that the compiler keeps values in caller-saved ones."""
    failed_reset_keeps: bool = False
    """``reset_ftrace_direct_ips`` leaves the new sites in ``direct_functions`` where it could not patch them."""

    @classmethod
    def as_posted(cls) -> "TracingMultiDefects":
        """All of them: the series as it was posted."""
        return cls(**{field.name: True for field in fields(cls)})
