"""Result of verification: facts about each instruction, the program's functions, and the objects that it uses.

Used by the rewriting that makes the JIT's input (``trampoline.bpf.rewrite``), multi links and callers.
"""

from dataclasses import dataclass, field
from enum import Enum

from trampoline.bpf.prog_uses import Uses
from trampoline.bpf.program import BpfProgram, MapSpec


class Pointee(Enum):
    """Kind of memory that the base register of a load or store points to, for the rewriting."""

    CTX = "ctx"
    BTF_ID = "btf_id"
    """Kernel memory that may be invalid: the load becomes a PROBE_MEM."""
    TRUSTED = "trusted"
    """Kernel memory that is valid: a plain load."""
    ARENA = "arena"
    OTHER = "other"
    """Stack, map values, memory of known size: a plain access."""


@dataclass(slots=True)
class InsnFacts:
    """Facts about one instruction over all paths (``struct bpf_insn_aux_data``)."""

    seen: bool = False
    """Some path reaches it; unreached instructions are dead code."""
    pointee: Pointee | None = None
    """For a load, store or atomic operation."""
    map: MapSpec | None = None
    """The only map passed to a helper call; None for several or none."""
    map_key: int | None = None
    """Constant key of a map access with one (bpf_tail_call, array lookups)."""
    kfunc: int = 0
    """BTF id of the called kfunc."""
    inlines_loop: bool = False
    """A call of bpf_loop with one callback and flags 0, which is inlined."""
    loop_callback: int = 0
    """Function number of its callback."""
    calls_seen: bool = False
    """For a call: some path has called it before, so that recorded facts are the common part."""


@dataclass(slots=True)
class SubprogFacts:
    """A function of the program. Slots count 8 bytes."""

    start: int
    stack_depth: int = 0
    """Bytes of stack used, as passed to the JIT (before rounding)."""
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
    """One per instruction of ``program.insns`` (LD_IMM64 counts as one)."""
    subprogs: list[SubprogFacts]
    uses: Uses = field(default_factory=Uses)
    accessed_args: frozenset[int] = frozenset()
    """C arguments read through the context, counted from 0."""
    accesses_ret: bool = False
    max_ctx_offset: int = 0
    maps: tuple[MapSpec, ...] = ()
    """Maps that it uses, in the order of their first use."""
    log: str = ""
