"""Rules of a kernel release for calls and contexts: register types of arguments, refusals and their words."""

from collections.abc import Mapping
from dataclasses import dataclass

from trampoline.bpf.helpers.protos import HelperArg
from trampoline.bpf.verifier.values.kinds import Flag, RegKind

RegType = tuple[RegKind, Flag]
"""A base type with the flags that make another type of it."""


@dataclass(frozen=True, slots=True, eq=False)
class CallRules:
    """One release's calls."""

    arg_types: Mapping[HelperArg, tuple[RegType, ...]]
    """Register types that an argument takes."""
    unavailable: str
    """What a program is told that may not call a helper."""
    names_context: bool
    """A helper that may sleep is refused with the place where it may not."""
    global_calls_by_sleep: bool
    """A global function may be called with preemption or interrupts disabled unless it may sleep."""
    trusted: bool
    """Pointers to kernel memory are trusted or not (6.2)."""
    untrusted_leaves: bool
    """A pointer in a struct to something other than a struct is untrusted memory, not a number (6.17)."""
    any_pointer_is_number: bool
    """An argument that points to something other than a struct is a number; before, only void and integers were."""
    lsm_ranges: bool
    """LSM programs may return what their hook may (6.12)."""
    release_zero_off: bool
    """Whatever is given back has to have offset 0, with EINVAL."""
    contexts_are_memory: bool
    """A context that needs no conversion can be read as memory; after 6.18 only that of syscall programs."""
    cpu_number_bounded: bool
    """bpf_get_smp_processor_id gives a number below the count of CPUs."""
    elides_null: bool
    """An array's element with a constant index in range is there (6.14)."""
    map_owner_fault: str
    """What bpf_tail_call is refused with whose map is no prog array."""
    func_ip_kinds: str
    """Programs that bpf_get_func_ip is for, as its refusal says."""
    ringbuf_word: str = "ringbuf_"
    """Prefix of a register type that is memory of a ring buffer."""
    return_ranges: bool = True
    """Return values are compared by their bounds, not by their bits."""
    names_global: bool = True
    """A call with invalid arguments is refused with the name of the global function."""
    arg_tags: bool = True
    """Arguments of global functions may have tags (6.8)."""
    void_globals: bool = False
    """Global functions may return nothing."""
    const_dynptrs: bool = True
    """A helper that changes a dynptr does not take a constant one (6.2)."""
    kprobe_writes: bool = False
    """kprobe programs may write to their context (6.18)."""
