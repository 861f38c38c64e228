"""What verification gives: what each instruction was seen to do, the program's functions, and what it touches.

The rewriting that makes the JIT's input (``trampoline.bpf.rewrite``), multi links and callers read it.
"""

from dataclasses import dataclass, field
from enum import Enum

from trampoline.bpf.prog_uses import Uses
from trampoline.bpf.program import BpfProgram, MapSpec


class Pointee(Enum):
    """What the base register of a load or store points to, as far as rewriting asks."""

    CTX = "ctx"
    BTF_ID = "btf_id"
    """Kernel memory that need not be there: the load is a PROBE_MEM."""
    TRUSTED = "trusted"
    """Kernel memory that is there: a plain load."""
    ARENA = "arena"
    OTHER = "other"
    """Stack, map values, memory of known size: a plain access."""


@dataclass(slots=True)
class InsnFacts:
    """What was seen of one instruction on all paths (``struct bpf_insn_aux_data``)."""

    seen: bool = False
    """Some path comes here; what none reaches is dead code."""
    pointee: Pointee | None = None
    """Of a load, store or atomic operation."""
    map: MapSpec | None = None
    """The one map that a helper call was given; None where there were several or none."""
    map_key: int | None = None
    """Constant key of a map access with one (bpf_tail_call, array lookups)."""
    kfunc: int = 0
    """BTF id of the called kfunc."""
    inlines_loop: bool = False
    """A call of bpf_loop with one callback and flags 0, which is inlined."""
    loop_callback: int = 0
    """Its callback's function number."""
    calls_seen: bool = False
    """Of a call: some path called it before, so that what is noted of it is the common part."""


@dataclass(slots=True)
class SubprogFacts:
    """A function of the program. Slots count 8 bytes."""

    start: int
    stack_depth: int = 0
    """Bytes of stack that it touches, as the JIT gets it (before rounding)."""
    has_tail_call: bool = False
    tail_call_reachable: bool = False
    is_exception_callback: bool = False
    is_global: bool = False
    uses_private_stack: bool = False
    name: str = ""


@dataclass(slots=True)
class Verified:
    """An accepted program."""

    program: BpfProgram
    insns: list[InsnFacts]
    """One for each instruction of ``program.insns`` (LD_IMM64 counts as one)."""
    subprogs: list[SubprogFacts]
    uses: Uses = field(default_factory=Uses)
    accessed_args: frozenset[int] = frozenset()
    """C arguments that it reads through its context, counted from 0."""
    accesses_ret: bool = False
    max_ctx_offset: int = 0
    maps: tuple[MapSpec, ...] = ()
    """Maps that it uses, in the order of their first use."""
    log: str = ""
