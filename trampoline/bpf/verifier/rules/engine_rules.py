"""Rules of a kernel release for the walk over a program: arithmetic, jumps, stack, what is compared and cut."""

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
    """A jump whose left operand is the known one is decided (6.4)."""
    indirect_goto: bool
    """gotox by a jump table (7.0)."""
    percpu_and_casts: bool
    """addr_space_cast (6.9)."""
    fields_first: bool
    """Reserved fields and register numbers of all instructions are checked before anything is walked (7.1)."""
    refuses_call_loops: bool
    """A back edge in the graph with calls as edges is refused before the walk; None is in what is walked (6.1)."""
    call_loops_by_order: bool
    """Recursion is refused when functions are ordered by their calls (7.1)."""
    callback_once: bool
    """A callback's body is walked once, as part of its caller's path; later any number of times (6.7)."""
    main_first: bool
    """The main function is verified before global ones, and unreached ones are left out (6.8)."""
    max_frames: int
    """MAX_CALL_FRAMES."""
    frame_round: int
    """Frames of a chain of calls are rounded up to a multiple of it (32 where no JIT rounds them less)."""
    private_stack: bool
    """Functions of tracing programs have a stack of their own (6.13)."""
    stack_end_is_invalid: bool
    """An access that begins in the frame and ends above it is EINVAL."""
    narrow_fills: bool
    """The low part of a spilled number can be filled (6.9)."""
    spills_constants: bool
    """A constant that ST stores is spilled like a register (6.3)."""
    spills_unknown: bool
    """Numbers of which nothing is known, and zero, are spilled too (6.9)."""
    links_low_half: bool
    """A 32-bit move links the copy with its source where that fits in 32 bits (6.5)."""
    names_zero_size: bool
    """A size that may be zero is refused with its bounds (6.8)."""
    ctx_fixed_off: bool
    """A context pointer that was moved by a constant may be used (7.0)."""
    clobbers_read: bool
    """Stack that a call only reads is taken to be written too (until 6.13)."""
    trusts_more_pointers: bool
    """Trusted kernel pointers and memory are known not to be NULL (6.3)."""
    compares_same: bool
    """A comparison of a register with itself is decided (6.19)."""
    may_goto_nowhere: bool
    """may_goto may have the offset 0 (6.15)."""
    folds_offsets: bool
    """A pointer's constant offset is a part of its bounds (7.1)."""
    stack_arguments: bool
    """Functions may have more than five arguments, by way of r11 (7.2)."""
    ctx_store_imm: bool
    """ST into the context may be valid (6.4)."""
    linked_offsets: bool
    """Numbers stay linked when a constant is added to one (6.10)."""
    live_registers: bool
    """Registers that are dead by static analysis don't count in comparisons (6.16)."""
    keeps_or_null_off: bool
    """An offset of a pointer that may be NULL is allowed where it is 0."""
    extended_set: bool = False
    """Sign-extending loads and moves, signed division, unconditional byte swaps (6.6; gotol is in 6.1.192, too).
    From the release.
    """
    may_goto: bool = False
    """may_goto (6.9). From the release."""
    store_release: bool = False
    """load_acquire and store_release (6.15). From the release."""
    may_goto_stack: int = 0
    """Bytes of stack that a function with may_goto gets for its count (and, later, its time). From the release."""
