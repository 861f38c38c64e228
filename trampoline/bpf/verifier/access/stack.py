"""Loads from and stores to the stack: spilled registers, zeros, and bytes of unknown content.

Offsets are negative, from the frame's top (``check_stack_read``, ``check_stack_write``).
"""

from errno import EACCES, EINVAL

from trampoline.bpf.verifier.state.env import Env
from trampoline.bpf.verifier.state.state import (
    UNKNOWN_REG,
    FuncFrame,
    Reg,
    SlotKinds,
    StackSlot,
    known_reg,
)
from trampoline.bpf.verifier.values.kinds import RegKind, SlotKind
from trampoline.bpf.verifier.values.scalar import ZERO

MAX_STACK = 512
MAX_VAR_OFF = 1 << 29
INVALID: SlotKinds = (SlotKind.INVALID,) * 8
MISC: SlotKinds = (SlotKind.MISC,) * 8
SPILL: SlotKinds = (SlotKind.SPILL,) * 8
EMPTY = StackSlot(INVALID)
_SPECIAL = (SlotKind.DYNPTR, SlotKind.ITER, SlotKind.IRQ_FLAG)


def kinds_of(kinds: list[SlotKind]) -> SlotKinds:
    """Eight slots as a tuple."""
    a, b, c, d, e, f, g, h = kinds
    return a, b, c, d, e, f, g, h


def frame_of(env: Env, reg: Reg) -> FuncFrame:
    """The frame that a PTR_TO_STACK points into."""
    return env.state.frames[reg.frame]


def check_within(env: Env, regno: int, off: int, size: int, *, write: bool, what: str) -> tuple[int, int]:
    """Refuse an access that may be outside the frame; returns its lowest and its highest start.

    ``what`` is " read from", " write to" or " indirect access to", for the message. ``off`` includes the register's
    offset.
    """
    reg = env.frame.regs[regno]
    var = reg.var
    if not var.is_const and (var.smax >= MAX_VAR_OFF or var.smin <= -MAX_VAR_OFF):
        env.refuse(EACCES, f"invalid unbounded variable-offset{what} stack R{regno}")
    low, high = (off + var.signed, off + var.signed) if var.is_const else (off + var.smin, off + var.smax)
    errno = 0
    if not -MAX_STACK <= low <= -1:
        errno = EACCES
    elif high + size > 0:
        errno = EINVAL if env.rules.stack_end_is_invalid else EACCES
    if errno:
        if var.is_const:
            env.refuse(errno, f"invalid{what} stack R{regno} off={low} size={size}")
        env.refuse(errno, f"invalid variable-offset{what} stack R{regno} var_off={var.bits} off={off} size={size}")
    touch(env, frame_of(env, reg), low)
    return low, high


def touch(env: Env, frame: FuncFrame, low: int) -> None:
    """Record the stack usage of the frame's function."""
    depth = -low + 7 & ~7
    facts = env.subprogs[frame.subprog]
    if facts.stack_depth < depth:
        facts.stack_depth = depth


def read(env: Env, regno: int, off: int, size: int, value_regno: int) -> None:
    """A load, or for ``value_regno`` -1 a read whose value is discarded."""
    reg = env.frame.regs[regno]
    low, high = check_within(env, regno, off, size, write=False, what=" read from")
    frame = frame_of(env, reg)
    if low != high or not reg.var.is_const:
        if value_regno < 0:
            env.denied(
                "variable offset stack pointer cannot be passed into helper function; "
                f"var_off={reg.var.bits} off={off} size={size}"
            )
        check_initialised(env, regno, frame, low, high + size, off, size)
        env.frame.regs[value_regno] = _bytes_read(frame, low, high + size)
        return
    _read_fixed(env, frame, low, size, value_regno)


def _read_fixed(env: Env, frame: FuncFrame, off: int, size: int, value_regno: int) -> None:
    index = (-off - 1) >> 3
    slot = frame.stack.get(index, EMPTY)
    first = off + 8 * (index + 1)
    if not slot.is_spilled_reg:
        for kind in slot.kinds[first : first + size]:
            if kind is not SlotKind.MISC and kind is not SlotKind.ZERO:
                _check_unwritten(env, kind, off, size)
        if value_regno >= 0:
            env.frame.regs[value_regno] = _bytes_read(frame, off, off + size)
        return
    reg = slot.reg
    assert reg is not None
    spilled = _run(slot.kinds)
    if size == 8 and spilled == 8:
        if value_regno >= 0:
            env.frame.regs[value_regno] = reg
        elif not reg.is_scalar and not env.capabilities.ptr_leaks:
            env.denied(f"leaking pointer from stack off {off}")
        return
    if not reg.is_scalar:
        env.denied("invalid size of register fill")
    if value_regno < 0:
        return
    narrow = first == 0 and (size <= spilled if env.rules.narrow_fills else size == spilled)
    if narrow:
        wide = reg.var.umax >> 8 * size
        env.frame.regs[value_regno] = reg._replace(id=0, off=0, add_const=False) if wide else reg
        return
    kinds = slot.kinds[first : first + size]
    for kind in kinds:
        if kind not in (SlotKind.SPILL, SlotKind.MISC, SlotKind.ZERO):
            _check_unwritten(env, kind, off, size)
    zero = all(kind is SlotKind.ZERO for kind in kinds) or (
        reg.var == ZERO and all(kind is SlotKind.SPILL for kind in kinds) and env.rules.narrow_fills
    )
    env.frame.regs[value_regno] = known_reg(0) if zero else UNKNOWN_REG


def _run(kinds: SlotKinds) -> int:
    """Number of register bytes spilled in the slot."""
    count = 0
    for kind in kinds:
        if kind is not SlotKind.SPILL:
            break
        count += 1
    return count


def _check_unwritten(env: Env, kind: SlotKind, off: int, size: int) -> None:
    if kind is not SlotKind.INVALID or not env.capabilities.uninit_stack:
        env.denied(f"invalid read from stack off {off}+0 size {size}")


def _bytes_read(frame: FuncFrame, low: int, high: int) -> Reg:
    """Bytes ``low`` to ``high`` - 1 as a number."""
    for at in range(low, high):
        index = (-at - 1) >> 3
        slot = frame.stack.get(index, EMPTY)
        if slot.kinds[at + 8 * (index + 1)] is not SlotKind.ZERO:
            return UNKNOWN_REG
    return known_reg(0)


def check_initialised(
    env: Env, regno: int, frame: FuncFrame, low: int, high: int, off: int, size: int, *, clobber: bool = False
) -> None:
    """Refuse bytes that may not be read; ``clobber``: a call may write them, so they become MISC."""
    for at in range(low, high):
        index = (-at - 1) >> 3
        slot = frame.stack.get(index, EMPTY)
        position = at + 8 * (index + 1)
        kind = slot.kinds[position]
        if kind is SlotKind.MISC:
            continue
        if kind is SlotKind.ZERO or (kind is SlotKind.INVALID and env.capabilities.uninit_stack):
            if clobber:
                _set_byte(frame, index, slot, position)
            continue
        if slot.is_spilled_reg and slot.reg is not None and (slot.reg.is_scalar or env.capabilities.ptr_leaks):
            if clobber:
                frame.stack[index] = StackSlot(scrubbed(slot.kinds))
            continue
        var = env.frame.regs[regno].var
        if var.is_const:
            env.denied(f"invalid read from stack R{regno} off {low}+{at - low} size {size}")
        env.denied(f"invalid read from stack R{regno} var_off {var.bits}+{at - low} size {size}")


def _set_byte(frame: FuncFrame, index: int, slot: StackSlot, position: int, kind: SlotKind = SlotKind.MISC) -> None:
    kinds = list(slot.kinds)
    kinds[position] = kind
    frame.stack[index] = StackSlot(kinds_of(kinds), slot.reg)


def scrubbed(kinds: SlotKinds) -> SlotKinds:
    """The kinds of a spilled register's bytes after part of the slot is overwritten."""
    if kinds == SPILL:
        return MISC
    return kinds_of([SlotKind.MISC if kind in (SlotKind.SPILL, *_SPECIAL) else kind for kind in kinds])


def write(env: Env, regno: int, off: int, size: int, value: Reg | None, *, constant: int | None = None) -> None:
    """A store of a register, of a constant, or (both None) of an unknown number."""
    reg = env.frame.regs[regno]
    low, high = check_within(env, regno, off, size, write=True, what=" write to")
    frame = frame_of(env, reg)
    if value is None and constant is not None:
        value = known_reg(constant)
        if constant and not env.rules.spills_constants:
            value = UNKNOWN_REG if env.rules.spills_unknown else None
    if low != high or not reg.var.is_const:
        _write_anywhere(env, frame, low, high + size, value)
    else:
        _write_fixed(env, frame, low, size, value)


def _write_fixed(env: Env, frame: FuncFrame, off: int, size: int, value: Reg | None) -> None:
    index = (-off - 1) >> 3
    slot = frame.stack.get(index, EMPTY)
    first = off + 8 * (index + 1)
    if not env.capabilities.ptr_leaks and slot.is_spilled_reg and size != 8:
        env.denied("attempt to corrupt spilled pointer on stack")
    check_special(env, frame, index, slot)
    slot = frame.stack.get(index, EMPTY)
    if value is not None and not first and _spills_as_scalar(env, value, size):
        if value.var.umax >> 8 * size:
            value = value._replace(id=0, off=0, add_const=False)
        _spill(frame, index, slot, value, size)
    elif value is not None and not value.is_scalar:
        if size != 8:
            env.denied("invalid size of register spill")
        if frame is not env.frame and value.kind is RegKind.PTR_TO_STACK:
            env.invalid("cannot spill pointers to stack into stack frame of the caller")
        _spill(frame, index, slot, value, 8)
    else:
        kinds = list(scrubbed(slot.kinds) if slot.reg is not None else slot.kinds)
        kind = SlotKind.ZERO if value is not None and value.is_null else SlotKind.MISC
        kinds[first : first + size] = [kind] * size
        frame.stack[index] = StackSlot(kinds_of(kinds))


def _spills_as_scalar(env: Env, value: Reg, size: int) -> bool:
    if not value.is_scalar or not env.capabilities.bpf:
        return False
    if env.rules.spills_unknown:
        return True
    return not value.is_null and not value.var.is_unknown


def _spill(frame: FuncFrame, index: int, slot: StackSlot, value: Reg, size: int) -> None:
    if size == 8:
        frame.stack[index] = StackSlot(SPILL, value)
        return
    kinds = list(scrubbed(slot.kinds))
    kinds[:size] = [SlotKind.SPILL] * size
    frame.stack[index] = StackSlot(kinds_of(kinds), value)


def check_special(env: Env, frame: FuncFrame, index: int, slot: StackSlot) -> None:
    """A store to a dynptr, iterator or IRQ flag invalidates it; refused for a dynptr that holds a reference."""
    if slot.reg is None or slot.kinds[0] not in _SPECIAL:
        return
    if slot.kinds[0] is SlotKind.DYNPTR:
        if slot.reg.ref_obj_id:
            env.invalid("cannot overwrite referenced dynptr")
        key = slot.reg.detail
        for other, candidate in list(frame.stack.items()):
            if candidate.reg is not None and candidate.kinds[0] is SlotKind.DYNPTR and candidate.reg.detail == key:
                frame.stack[other] = EMPTY
        slices = ("slice", slot.reg.id)
        env.state.each_reg(lambda reg: UNKNOWN_REG if reg.detail == slices else reg)
        return
    frame.stack[index] = StackSlot(scrubbed(slot.kinds))


def _write_anywhere(env: Env, frame: FuncFrame, low: int, high: int, value: Reg | None) -> None:
    """A store at a variable offset: loses registers spilled in its range; unwritten bytes may become written."""
    zero = value is not None and value.is_null
    for at in range(low, high):
        index = (-at - 1) >> 3
        slot = frame.stack.get(index, EMPTY)
        check_special(env, frame, index, slot)
        slot = frame.stack.get(index, EMPTY)
        position = at + 8 * (index + 1)
        kind = slot.kinds[position]
        if not env.capabilities.ptr_leaks and slot.reg is not None and not slot.reg.is_scalar:
            env.invalid(f"spilled ptr in range of var-offset stack write; insn {env.slot}, ptr off: {at}")
        if zero and kind is SlotKind.SPILL and slot.reg is not None and slot.reg.is_null:
            continue
        if kind is SlotKind.INVALID and not env.capabilities.uninit_stack:
            env.invalid(f"uninit stack in range of var-offset write prohibited for !root; insn {env.slot}, off: {at}")
        if slot.reg is not None:
            slot = StackSlot(scrubbed(slot.kinds))
        keeps_zero = zero and kind is SlotKind.ZERO
        _set_byte(frame, index, slot, position, SlotKind.ZERO if keeps_zero else SlotKind.MISC)
