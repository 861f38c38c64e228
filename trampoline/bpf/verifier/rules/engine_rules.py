"""Rules of a kernel release for the walk over a program: arithmetic, jumps, stack, comparison of states."""

from dataclasses import dataclass

from trampoline.bpf.verifier.values.arith import Tightness
from trampoline.bpf.verifier.values.branches import Refine, Taken


@dataclass(frozen=True, slots=True)
class EngineRules:
    """One release's walk. ``KernelRelease`` sets the fields whose docstring says "from the release"."""

    arithmetic: Tightness
    taken: Taken
    refine: Refine
    flips_known_left: bool
    """A jump with a constant left operand is decided (6.4)."""
    indirect_goto: bool
    """gotox by a jump table (7.0)."""
    percpu_and_casts: bool
    """addr_space_cast (6.9)."""
    fields_first: bool
    """Reserved fields and register numbers of all instructions are checked before anything is walked (7.1)."""
    refuses_call_loops: bool
    """A back edge in the graph that includes calls is refused before the walk; recursion is not detected later (6.1).
    """
    call_loops_by_order: bool
    """Recursion is refused when functions are sorted by their calls (7.1)."""
    callback_once: bool
    """A callback's body is walked once, as part of its caller's path; later any number of times (6.7)."""
    main_first: bool
    """The main function is verified before global ones, and unreachable ones are skipped (6.8)."""
    max_frames: int
    """MAX_CALL_FRAMES."""
    frame_round: int
    """Frame sizes in a chain of calls are rounded up to a multiple of this (32 unless a JIT rounds them less)."""
    private_stack: bool
    """Functions of tracing programs have a private stack (6.13)."""
    stack_end_is_invalid: bool
    """An access that starts in the frame and ends above it is EINVAL."""
    narrow_fills: bool
    """The low part of a spilled number can be filled (6.9)."""
    spills_constants: bool
    """A constant stored by ST is spilled like a register (6.3)."""
    spills_unknown: bool
    """Unknown numbers, and zero, are spilled too (6.9)."""
    links_low_half: bool
    """A 32-bit move links the copy with its source if that fits in 32 bits (6.5)."""
    names_zero_size: bool
    """The refusal of a size that may be zero contains its bounds (6.8)."""
    ctx_fixed_off: bool
    """A context pointer with a constant offset may be used (7.0)."""
    clobbers_read: bool
    """Stack that a call only reads also counts as written (until 6.13)."""
    trusts_more_pointers: bool
    """Trusted kernel pointers and memory are known not to be NULL (6.3)."""
    compares_same: bool
    """A comparison of a register with itself is decided (6.19)."""
    may_goto_nowhere: bool
    """may_goto may have the offset 0 (6.15)."""
    folds_offsets: bool
    """A pointer's constant offset is part of its bounds (7.1)."""
    stack_arguments: bool
    """Functions may have more than five arguments, through r11 (7.2)."""
    ctx_store_imm: bool
    """ST into the context may be valid (6.4)."""
    linked_offsets: bool
    """Numbers stay linked after a constant is added to one (6.10)."""
    live_registers: bool
    """Registers that are dead by static analysis are ignored in comparisons (6.16)."""
    keeps_or_null_off: bool
    """An offset of 0 is allowed on a pointer that may be NULL."""
    extended_set: bool = False
    """Sign-extending loads and moves, signed division, byte swaps (6.6; gotol also in 6.1.192). From the release."""
    may_goto: bool = False
    """may_goto (6.9). From the release."""
    store_release: bool = False
    """load_acquire and store_release (6.15). From the release."""
    may_goto_stack: int = 0
    """Stack bytes of a function with may_goto for its count (and, later, its time). From the release."""
