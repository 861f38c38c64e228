"""What releases verify differently, as far as the engine is concerned. Calls and contexts have their own tables."""

from dataclasses import dataclass

from trampoline.bpf.isa.insn import Alu
from trampoline.bpf.verifier.values.arith import Tightness
from trampoline.bpf.verifier.values.bounds import sync_by_sign, sync_mixed
from trampoline.bpf.verifier.values.branches import (
    Refine,
    Taken,
    refine_by_constant,
    refine_by_range,
    taken_by_constant,
    taken_by_range,
)


@dataclass(frozen=True, slots=True)
class Rules:
    """One release's verifier. A new release is a new value here."""

    name: str
    arithmetic: Tightness
    taken: Taken
    refine: Refine
    flips_known_left: bool
    """A jump whose left operand is the known one is decided (6.4)."""
    extended_set: bool
    """Sign-extending loads and moves, signed division, unconditional byte swaps (6.6; gotol is in 6.1.192, too)."""
    may_goto: bool
    """may_goto (6.9)."""
    store_release: bool
    """load_acquire and store_release (6.15)."""
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
    may_goto_stack: int
    """Bytes of stack that a function with may_goto gets for its count (and, later, its time)."""
    ctx_store_imm: bool
    """ST into the context may be valid (6.4)."""
    linked_offsets: bool
    """Numbers stay linked when a constant is added to one (6.10)."""
    live_registers: bool
    """Registers that are dead by static analysis don't count in comparisons (6.16)."""
    keeps_or_null_off: bool
    """An offset of a pointer that may be NULL is allowed where it is 0."""


_OLD_OPS = frozenset({Alu.MUL, Alu.OR, Alu.XOR, Alu.LSH, Alu.RSH, Alu.ARSH})
_SHIFTS = frozenset({Alu.LSH, Alu.RSH, Alu.ARSH})

RULES = {
    rules.name: rules
    for rules in (
        Rules(
            "6.1",
            Tightness(sync_by_sign, _OLD_OPS, casts_bitwise=False),
            taken_by_constant,
            refine_by_constant,
            flips_known_left=False,
            extended_set=False,
            may_goto=False,
            store_release=False,
            indirect_goto=False,
            percpu_and_casts=False,
            fields_first=False,
            refuses_call_loops=True,
            call_loops_by_order=False,
            callback_once=True,
            main_first=False,
            max_frames=8,
            frame_round=32,
            private_stack=False,
            stack_end_is_invalid=True,
            narrow_fills=False,
            spills_constants=False,
            spills_unknown=False,
            links_low_half=False,
            names_zero_size=False,
            ctx_fixed_off=False,
            clobbers_read=True,
            trusts_more_pointers=False,
            compares_same=False,
            may_goto_nowhere=False,
            folds_offsets=False,
            stack_arguments=False,
            may_goto_stack=0,
            ctx_store_imm=False,
            linked_offsets=False,
            live_registers=False,
            keeps_or_null_off=False,
        ),
        Rules(
            "6.12",
            Tightness(sync_mixed, _SHIFTS),
            taken_by_range,
            refine_by_range,
            flips_known_left=True,
            extended_set=True,
            may_goto=True,
            store_release=False,
            indirect_goto=False,
            percpu_and_casts=True,
            fields_first=False,
            refuses_call_loops=False,
            call_loops_by_order=False,
            callback_once=False,
            main_first=True,
            max_frames=8,
            frame_round=16,
            private_stack=False,
            stack_end_is_invalid=True,
            narrow_fills=True,
            spills_constants=True,
            spills_unknown=True,
            links_low_half=True,
            names_zero_size=True,
            ctx_fixed_off=False,
            clobbers_read=True,
            trusts_more_pointers=True,
            compares_same=False,
            may_goto_nowhere=False,
            folds_offsets=False,
            stack_arguments=False,
            may_goto_stack=8,
            ctx_store_imm=True,
            linked_offsets=True,
            live_registers=False,
            keeps_or_null_off=False,
        ),
        Rules(
            "7.2",
            Tightness(
                sync_mixed,
                _SHIFTS,
                keeps_double_overflow=True,
                signed_products=True,
                divides=True,
                negates=True,
                swaps=True,
            ),
            taken_by_range,
            refine_by_range,
            flips_known_left=True,
            extended_set=True,
            may_goto=True,
            store_release=True,
            indirect_goto=True,
            percpu_and_casts=True,
            fields_first=True,
            refuses_call_loops=False,
            call_loops_by_order=True,
            callback_once=False,
            main_first=True,
            max_frames=16,
            frame_round=16,
            private_stack=True,
            stack_end_is_invalid=True,
            narrow_fills=True,
            spills_constants=True,
            spills_unknown=True,
            links_low_half=True,
            names_zero_size=True,
            ctx_fixed_off=True,
            clobbers_read=False,
            trusts_more_pointers=True,
            compares_same=True,
            may_goto_nowhere=True,
            folds_offsets=True,
            stack_arguments=True,
            may_goto_stack=16,
            ctx_store_imm=True,
            linked_offsets=True,
            live_registers=True,
            keeps_or_null_off=True,
        ),
    )
}
