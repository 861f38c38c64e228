"""Rules of a kernel release for calls and contexts: register types of arguments, refusals and their messages."""

from collections.abc import Mapping
from dataclasses import dataclass

from trampoline.bpf.helpers.protos import HelperArg
from trampoline.bpf.verifier.values.kinds import Flag, RegKind

RegType = tuple[RegKind, Flag]
"""A base type with the flags that distinguish it."""


@dataclass(frozen=True, slots=True, eq=False)
class CallRules:
    """One release's calls."""

    arg_types: Mapping[HelperArg, tuple[RegType, ...]]
    """Register types that an argument accepts."""
    unavailable: str
    """Message for a helper that the program may not call."""
    names_context: bool
    """The refusal of a helper that may sleep names the section that forbids it."""
    global_calls_by_sleep: bool
    """A global function may be called with preemption or interrupts disabled unless it may sleep."""
    trusted: bool
    """Pointers to kernel memory are either trusted or untrusted (6.2)."""
    untrusted_leaves: bool
    """A pointer in a struct to something other than a struct is untrusted memory, not a number (6.17)."""
    any_pointer_is_number: bool
    """An argument that points to something other than a struct is a number; before, only void and integers were."""
    lsm_ranges: bool
    """LSM programs may return what their hook may (6.12)."""
    release_zero_off: bool
    """Every released argument must have offset 0, otherwise EINVAL."""
    contexts_are_memory: bool
    """A context without conversion can be read as memory; after 6.18 only that of syscall programs."""
    cpu_number_bounded: bool
    """bpf_get_smp_processor_id returns a number below the number of CPUs."""
    elides_null: bool
    """An array look-up with a constant index in range is not NULL (6.14)."""
    map_owner_fault: str
    """Message for bpf_tail_call with a map that is not a prog array."""
    func_ip_kinds: str
    """Programs that may call bpf_get_func_ip, as in its refusal."""
    ringbuf_word: str = "ringbuf_"
    """Prefix of the name of a register type for ring buffer memory."""
    return_ranges: bool = True
    """Return values are compared by their bounds, not by their bits."""
    names_global: bool = True
    """The refusal of a call with invalid arguments names the global function."""
    arg_tags: bool = True
    """Arguments of global functions may have tags (6.8)."""
    void_globals: bool = False
    """Global functions may return void."""
    const_dynptrs: bool = True
    """A helper that changes a dynptr does not accept a constant one (6.2)."""
    kprobe_writes: bool = False
    """kprobe programs may write to their context (6.18)."""
