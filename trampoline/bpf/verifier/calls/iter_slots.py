"""Open-coded iterators: their state on the stack, and the two paths after their ``next``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trampoline.bpf.btf.btf import Type
from trampoline.bpf.helpers.kfuncs import Kf
from trampoline.bpf.verifier.access.memory import check_mem_access
from trampoline.bpf.verifier.calls.frames import push_iteration
from trampoline.bpf.verifier.state import refs
from trampoline.bpf.verifier.state.env import Env
from trampoline.bpf.verifier.state.state import FuncFrame, Reg, SlotKinds, StackSlot, known_reg
from trampoline.bpf.verifier.values.kinds import Flag, RegKind, SlotKind
from trampoline.bpf.verifier.values.scalar import ZERO

if TYPE_CHECKING:
    from trampoline.bpf.verifier.calls.kfunc_args import KfuncCall

ACTIVE, DRAINED = "active", "drained"
_KINDS: SlotKinds = (SlotKind.ITER,) * 8
_EMPTY: SlotKinds = (SlotKind.INVALID,) * 8


def use_iterator(env: Env, call: KfuncCall, regno: int, struct: Type) -> None:
    """``process_iter_arg``: create an iterator's state, use it or destroy it."""
    reg = env.reg(regno)
    newer = env.kernel.rules.kfuncs.names_registers
    where = f"R{regno}" if newer else f"arg#{regno - 1}"
    shown = f"R{regno}" if newer else f"arg #{regno - 1}"
    if reg.kind is not RegKind.PTR_TO_STACK:
        env.invalid(f"{where} expected pointer to an iterator on stack")
    name, count = struct.name.removeprefix("bpf_"), struct.size // 8
    first = _first_slot(env, reg, count, name)
    frame = env.state.frames[reg.frame]
    held = frame.stack.get(first)
    is_iterator = (
        held is not None
        and held.kinds == _KINDS
        and held.reg is not None
        and held.reg.detail[:2] == ("iter", name)
        and bool(held.reg.ref_obj_id)
        and all(_is_part(frame, first - n, first) for n in range(count))
    )
    if call.kfunc.has(Kf.ITER_NEW):
        if any(_is_special(frame.stack.get(first - n)) for n in range(count)):
            env.invalid(f"expected uninitialized {name} as {shown}")
        if call.kfunc.has(Kf.RCU_PROTECTED):
            env.unsupported("iterators over RCU-protected objects")
        for n in range(count):
            check_mem_access(env, regno, 8 * n, 8, True, -1)
        number = refs.acquire(env)
        for n in range(count):
            detail = ("iter", name, ACTIVE, first)
            part = Reg(RegKind.NOT_INIT, ref_obj_id=number if n == 0 else 0, detail=detail)
            frame.stack[first - n] = StackSlot(_KINDS, part)
        return
    if not is_iterator:
        env.invalid(f"expected an initialized {name} as {shown}")
    assert held is not None
    assert held.reg is not None
    call.iterator = (reg.frame, first)
    call.ref_obj_id = held.reg.ref_obj_id
    if call.kfunc.has(Kf.ITER_DESTROY):
        refs.release(env, held.reg.ref_obj_id)
        for n in range(count):
            frame.stack[first - n] = StackSlot(_EMPTY)


def _is_special(slot: StackSlot | None) -> bool:
    return slot is not None and slot.kinds[0] in (SlotKind.ITER, SlotKind.DYNPTR, SlotKind.IRQ_FLAG)


def _is_part(frame: FuncFrame, index: int, first: int) -> bool:
    slot = frame.stack.get(index)
    return slot is not None and slot.kinds == _KINDS and slot.reg is not None and slot.reg.detail[3:] == (first,)


def _first_slot(env: Env, reg: Reg, count: int, name: str) -> int:
    """Index of the slot at the lowest address (``iter_get_spi``)."""
    if reg.var != ZERO and not reg.var.is_const:
        env.invalid(f"{name} has to be at a constant offset")
    off = reg.off + reg.var.signed
    if off % 8:
        env.invalid(f"cannot pass in {name} at an offset={off}")
    first = -off // 8 - 1
    if off >= 0 or first >= 64 or first - count + 1 < 0:
        env.invalid(f"cannot pass in {name} at an offset={off}")
    return first


def give_next(env: Env, call: KfuncCall) -> None:
    """``process_iter_next_call``: one path with the iterator drained, one with an element."""
    number, first = call.iterator
    given = env.reg(0)

    def drained(frame: FuncFrame) -> None:
        _set_state(frame, first, DRAINED)
        frame.regs[0] = known_reg(0)

    def again(frame: FuncFrame) -> None:
        _set_state(frame, first, ACTIVE)
        frame.regs[0] = given._replace(flags=given.flags & ~Flag.PTR_MAYBE_NULL, id=0)

    if number != env.frame.number:
        env.unsupported("iterators of calling functions")
    held = env.frame.stack[first].reg
    if held is not None and held.detail[2] == DRAINED:
        drained(env.frame)
        return
    push_iteration(env, drained, again)


def _set_state(frame: FuncFrame, first: int, what: str) -> None:
    slot = frame.stack[first]
    assert slot.reg is not None
    # The number of rounds is not part of the state: paths that differ only in it are the same.
    frame.stack[first] = StackSlot(_KINDS, slot.reg._replace(detail=("iter", slot.reg.detail[1], what, first)))
