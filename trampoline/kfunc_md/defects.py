"""Defects of the posted tracing-multi series, one switch each."""

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class TracingMultiDefects:
    """Defects of the posted series that are kept. Default: none, the repaired series."""

    null_result: bool = False
    """A failed look-up continues as if it had found metadata at address 0. Functions that no look-up finds, because
    they are not 16-byte aligned, are accepted.
    """
    resize_copies: bool = False
    """A resize copies every metadata object, and a call in flight keeps the old one; a program unlinked later is
    unlinked from the copy only. The old table is freed after an RCU grace period, which does not wait for a task
    preempted outside a read section.
    """
    unlink_stops: bool = False
    """Unlinking a program from several functions stops with -EINVAL at the first one that does not have it: the others
    stay linked, no reference is put, and sites stay patched.
    """
    unlink_walks_all: bool = False
    """A failed link is undone by unlinking all of its functions, also those not yet linked: there it removes the
    program and drops the user of another link. A function without metadata is a WARN.
    """
    narrow_counters: bool = False
    """``bpf_prog_cnt`` (8 bits) and ``users`` (16 bits) wrap, and there is no limit on a function's programs."""
    confused_ops_func: bool = False
    """Livepatch calls ``bpf_tramp_ftrace_ops_func()`` of the ftrace_ops, which takes ``ops->private``, a
    bpf_global_trampoline, for a bpf_trampoline.
    """
    no_clobbers: bool = False
    """The calls of programs declare no clobbered registers, so the compiler keeps values in caller-saved ones."""
    failed_reset_keeps: bool = False
    """``reset_ftrace_direct_ips`` leaves the new sites in ``direct_functions`` if it can't patch them."""

    @classmethod
    def as_posted(cls) -> "TracingMultiDefects":
        """All defects: the series as posted."""
        return cls(**{field.name: True for field in fields(cls)})
