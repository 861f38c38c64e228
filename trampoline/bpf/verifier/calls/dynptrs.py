"""Dynptrs: two stack slots that describe memory, created, used and released by helpers (``process_dynptr_func``)."""

from trampoline.bpf.helpers.protos import ArgFlag, ArgSpec
from trampoline.bpf.verifier.access.memory import check_mem_access
from trampoline.bpf.verifier.state import refs
from trampoline.bpf.verifier.state.env import Env
from trampoline.bpf.verifier.state.state import Reg, SlotKinds, StackSlot
from trampoline.bpf.verifier.values.kinds import RegKind, SlotKind

_KINDS: SlotKinds = (SlotKind.DYNPTR,) * 8
_EMPTY: SlotKinds = (SlotKind.INVALID,) * 8
LOCAL, RINGBUF = "local", "ringbuf"


def use_dynptr(env: Env, regno: int, spec: ArgSpec) -> Reg:
    """Create the dynptr at a register, or check that it has the kind that the helper takes.

    Returns its first slot, whose ``id`` is the dynptr's and ``ref_obj_id`` the reference that it holds.
    """
    reg = env.reg(regno)
    if spec.has(ArgFlag.UNINIT):
        return _make(env, regno, reg, RINGBUF if spec.has(ArgFlag.RINGBUF) else LOCAL)
    shown = f"arg #{regno}"
    if reg.kind is RegKind.CONST_PTR_TO_DYNPTR:
        if not spec.has(ArgFlag.RDONLY) and env.kernel.rules.calls.const_dynptrs:
            env.invalid("cannot pass pointer to const bpf_dynptr, the helper mutates it")
        if spec.has(ArgFlag.RINGBUF):
            env.invalid(f"Expected a dynptr of type ringbuf as {shown}")
        return reg
    held = held_at(env, reg)
    if held is None:
        env.invalid(f"Expected an initialized dynptr as {shown}")
    if spec.has(ArgFlag.RINGBUF) and held.detail[1] != RINGBUF:
        env.invalid(f"Expected a dynptr of type ringbuf as {shown}")
    return held


def held_at(env: Env, reg: Reg) -> Reg | None:
    """The first slot of the dynptr that a register points to; None if there is no dynptr."""
    if reg.kind is not RegKind.PTR_TO_STACK or not reg.var.is_const or (reg.off + reg.var.signed) % 8:
        return None
    first = -(reg.off + reg.var.signed) // 8 - 1
    frame = env.state.frames[reg.frame]
    slot, second = frame.stack.get(first), frame.stack.get(first - 1)
    if slot is None or second is None or slot.reg is None or second.reg is None:
        return None
    if slot.kinds != _KINDS or second.kinds != _KINDS or slot.reg.detail[2:] != (first,):
        return None
    return slot.reg


def _make(env: Env, regno: int, reg: Reg, kind: str) -> Reg:
    if reg.kind is RegKind.CONST_PTR_TO_DYNPTR:
        env.invalid("Dynptr has to be an uninitialized dynptr")
    if not reg.var.is_const:
        env.invalid("dynptr has to be at a constant offset")
    off = reg.off + reg.var.signed
    if off % 8 or not -512 <= off <= -16:
        env.invalid(f"cannot pass in dynptr at an offset={off}")
    for at in (0, 8):
        check_mem_access(env, regno, at, 8, True, -1)
    first = -off // 8 - 1
    frame = env.state.frames[reg.frame]
    number = refs.acquire(env) if kind == RINGBUF else 0
    made = Reg(RegKind.NOT_INIT, id=env.new_id(), ref_obj_id=number, detail=("dynptr", kind, first))
    for index in (first, first - 1):
        frame.stack[index] = StackSlot(_KINDS, made)
    return made


def release_dynptr(env: Env, regno: int) -> None:
    """Release the reference that a dynptr holds; invalidates it and everything derived from it."""
    reg = env.reg(regno)
    if reg.kind is not RegKind.PTR_TO_STACK:
        env.invalid("cannot release unowned const bpf_dynptr")
    held = held_at(env, reg)
    if held is None or not held.ref_obj_id:
        env.invalid(f"arg {regno} is an unacquired reference")
    refs.release(env, held.ref_obj_id)
    for frame in env.state.frames:
        for index, slot in list(frame.stack.items()):
            if slot.kinds == _KINDS and slot.reg is not None and slot.reg.ref_obj_id == held.ref_obj_id:
                frame.stack[index] = StackSlot(_EMPTY)
