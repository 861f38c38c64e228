"""Verifier state at one point of one path: registers, stack, call frames, acquired resources.

``Reg`` and ``StackSlot`` are immutable, so that copying a state copies references only; a change replaces the object.
"""

from collections.abc import Callable
from typing import NamedTuple

from trampoline.bpf.btf.btf import Btf
from trampoline.bpf.program import MapSpec
from trampoline.bpf.verifier.values.kinds import Flag, RegKind, SlotKind
from trampoline.bpf.verifier.values.scalar import UNKNOWN_SCALAR, ZERO, Scalar, known

NO_FLAGS = Flag.NONE


class Reg(NamedTuple):
    """One register, or one spilled register (``struct bpf_reg_state``).

    A pointer's offset is ``off`` (known) + ``var`` (variable; ZERO if none). A scalar has ``var`` only.
    """

    kind: RegKind
    flags: Flag = NO_FLAGS
    off: int = 0
    var: Scalar = ZERO
    id: int = 0
    """Registers with the same id (not 0) have the same number, or become NULL or not NULL together."""
    ref_obj_id: int = 0
    """The acquired reference that it belongs to."""
    map: MapSpec | None = None
    map_uid: int = 0
    """Distinguishes inner maps of two look-ups."""
    btf: Btf | None = None
    btf_id: int = 0
    """Type that it points to, in ``btf``."""
    mem_size: int = 0
    """Size of PTR_TO_MEM in bytes."""
    subprog: int = 0
    """Function of PTR_TO_FUNC."""
    frame: int = 0
    """Frame number of a PTR_TO_STACK."""
    range: int = 0
    """Bytes known to be valid after a packet pointer."""
    detail: tuple[object, ...] = ()
    """Data of a single kind, first its name: ("dynptr", kind, first slot), ("iter", ...)."""
    add_const: bool = False
    """For a scalar with an id: it equals the scalars with this id and without this flag, plus ``off`` (BPF_ADD_CONST).
    """

    def has(self, flag: Flag) -> bool:
        """True if any of these flags is set."""
        return self.flags is not NO_FLAGS and bool(self.flags & flag)

    @property
    def is_scalar(self) -> bool:
        """True for SCALAR_VALUE."""
        return self.kind is RegKind.SCALAR_VALUE

    @property
    def is_null(self) -> bool:
        """True for the number 0 (``register_is_null``)."""
        return self.kind is RegKind.SCALAR_VALUE and self.var == ZERO

    @property
    def maybe_null(self) -> bool:
        """True for a pointer that has not been checked against NULL."""
        return self.flags is not NO_FLAGS and bool(self.flags & Flag.PTR_MAYBE_NULL)


NOT_INIT = Reg(RegKind.NOT_INIT, var=UNKNOWN_SCALAR)
UNKNOWN_REG = Reg(RegKind.SCALAR_VALUE, var=UNKNOWN_SCALAR)


def scalar_reg(var: Scalar) -> Reg:
    """A register with a number."""
    return Reg(RegKind.SCALAR_VALUE, var=var)


def known_reg(number: int) -> Reg:
    """A register with this known number."""
    return Reg(RegKind.SCALAR_VALUE, var=known(number))


class StackSlot(NamedTuple):
    """Eight bytes of stack: the kind of each byte (lowest address first), and the spilled register if any.

    ``reg`` belongs to SPILL bytes, and to DYNPTR, ITER and IRQ_FLAG (``reg.detail`` describes those).
    """

    kinds: tuple[SlotKind, SlotKind, SlotKind, SlotKind, SlotKind, SlotKind, SlotKind, SlotKind]
    reg: Reg | None = None

    @property
    def is_spilled_reg(self) -> bool:
        """True if it contains a whole register or its low part (``is_spilled_reg``)."""
        return self.kinds[0] is SlotKind.SPILL

    @property
    def is_full_spill(self) -> bool:
        """True if all eight bytes are a spilled register."""
        return self.kinds[7] is SlotKind.SPILL and self.kinds[0] is SlotKind.SPILL


SlotKinds = tuple[SlotKind, SlotKind, SlotKind, SlotKind, SlotKind, SlotKind, SlotKind, SlotKind]


class Ref(NamedTuple):
    """An acquired resource that must be released (``struct bpf_reference_state``)."""

    id: int
    slot: int
    """Instruction that acquired it."""
    kind: str = "pointer"
    """"pointer", "irq", "lock" or "res_lock"."""
    frame: int = 0
    """Frame that acquired it: 6.1 refuses references left by a callback."""
    pointer: int = 0
    """For a lock: identity of its map value or object."""


class FuncFrame:
    """Registers and stack of one active function (``struct bpf_func_state``)."""

    __slots__ = (
        "callback_range",
        "callsite",
        "depth",
        "in_async_callback",
        "in_callback",
        "in_exception_callback",
        "number",
        "regs",
        "stack",
        "subprog",
    )

    def __init__(self, subprog: int, number: int, callsite: int) -> None:
        self.regs: list[Reg] = [NOT_INIT] * 11
        self.stack: dict[int, StackSlot] = {}
        """By index of the 8 bytes from the top: 0 is fp-8 to fp-1. Missing slots are all INVALID."""
        self.subprog = subprog
        self.number = number
        self.callsite = callsite
        """Slot of the call instruction."""
        self.in_callback = False
        self.in_async_callback = False
        self.in_exception_callback = False
        self.callback_range: tuple[int, int] = (0, 0)
        """Allowed results of a callback."""
        self.depth = 0
        """Number of times that its callback was entered on this path (``callback_depth``)."""

    def copy(self) -> "FuncFrame":
        """An independent copy."""
        other = FuncFrame.__new__(FuncFrame)
        other.regs = self.regs.copy()
        other.stack = self.stack.copy()
        other.subprog = self.subprog
        other.number = self.number
        other.callsite = self.callsite
        other.in_callback = self.in_callback
        other.in_async_callback = self.in_async_callback
        other.in_exception_callback = self.in_exception_callback
        other.callback_range = self.callback_range
        other.depth = self.depth
        return other


class VerifierState:
    """All frames of a path, the innermost last, and the path's resources (``struct bpf_verifier_state``)."""

    __slots__ = (
        "branches",
        "frames",
        "in_sleepable",
        "loop_depth",
        "may_goto_depth",
        "parent",
        "preempt_disabled",
        "rcu_read_locks",
        "refs",
        "slot",
        "speculative",
    )

    def __init__(self, frame: FuncFrame) -> None:
        self.frames = [frame]
        self.refs: tuple[Ref, ...] = ()
        """All acquired resources, including locks."""
        self.rcu_read_locks = 0
        self.preempt_disabled = 0
        self.in_sleepable = False
        self.speculative = False
        self.may_goto_depth = 0
        self.loop_depth = 0
        """Number of times that an iterator's or callback's body was entered on this path."""
        self.parent: VerifierState | None = None
        """The checkpoint before this state; it counts the paths through it."""
        self.branches = 1
        """Number of unfinished paths from this checkpoint."""
        self.slot = -1
        """Slot of a checkpoint."""

    @property
    def frame(self) -> FuncFrame:
        """The innermost frame."""
        return self.frames[-1]

    @property
    def active_locks(self) -> int:
        """Number of bpf_spin_locks held."""
        return sum(ref.kind == "lock" for ref in self.refs)

    def copy(self) -> "VerifierState":
        """An independent copy with the same parent."""
        other = VerifierState.__new__(VerifierState)
        other.frames = [frame.copy() for frame in self.frames]
        other.refs = self.refs
        other.rcu_read_locks = self.rcu_read_locks
        other.preempt_disabled = self.preempt_disabled
        other.in_sleepable = self.in_sleepable
        other.speculative = self.speculative
        other.may_goto_depth = self.may_goto_depth
        other.loop_depth = self.loop_depth
        other.parent = self.parent
        other.branches = 1
        other.slot = -1
        return other

    def each_reg(self, change: Callable[[Reg], Reg]) -> None:
        """Replace every register and spilled register of all frames by ``change(reg)``
        (``bpf_for_each_reg_in_vstate``).
        """
        for frame in self.frames:
            regs = frame.regs
            for n, reg in enumerate(regs):
                new = change(reg)
                if new is not reg:
                    regs[n] = new
            for index, slot in frame.stack.items():
                if slot.reg is not None and slot.kinds[0] is SlotKind.SPILL:
                    new = change(slot.reg)
                    if new is not slot.reg:
                        frame.stack[index] = StackSlot(slot.kinds, new)
