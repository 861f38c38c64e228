"""Saved interrupt flags: bpf_local_irq_save and bpf_local_irq_restore."""

from trampoline.bpf.verifier.access.memory import check_mem_access
from trampoline.bpf.verifier.state import refs
from trampoline.bpf.verifier.state.env import Env
from trampoline.bpf.verifier.state.state import Reg, SlotKinds, StackSlot
from trampoline.bpf.verifier.values.kinds import RegKind, SlotKind

_KINDS: SlotKinds = (SlotKind.IRQ_FLAG,) * 8
_EMPTY: SlotKinds = (SlotKind.INVALID,) * 8
_SPECIAL = (SlotKind.ITER, SlotKind.DYNPTR, SlotKind.IRQ_FLAG)


def use_irq_flag(env: Env, save: bool, regno: int, where: str) -> None:
    """``process_irq_flag``: save the flags into a stack slot, or restore them from it, in reverse order."""
    reg = env.reg(regno)
    if reg.kind is not RegKind.PTR_TO_STACK or not reg.var.is_const:
        env.invalid(f"{where} doesn't point to an irq flag on stack")
    off = reg.off + reg.var.signed
    if off % 8 or not -512 <= off < 0:
        env.invalid(f"cannot pass in irq flag at an offset={off}")
    index = -off // 8 - 1
    frame = env.state.frames[reg.frame]
    held = frame.stack.get(index)
    if save:
        if held is not None and held.kinds[0] in _SPECIAL:
            env.invalid(f"expected uninitialized irq flag as {where}")
        check_mem_access(env, regno, 0, 8, True, -1)
        number = refs.acquire(env, kind="irq")
        frame.stack[index] = StackSlot(_KINDS, Reg(RegKind.NOT_INIT, ref_obj_id=number, detail=("irq", index)))
        return
    if held is None or held.kinds != _KINDS or held.reg is None or not held.reg.ref_obj_id:
        env.invalid(f"expected an initialized irq flag as {where}")
    flags = [ref for ref in env.state.refs if ref.kind == "irq"]
    if not flags or flags[-1].id != held.reg.ref_obj_id:
        last = flags[-1] if flags else None
        id_, slot = (last.id, last.slot) if last else (0, 0)
        env.denied(f"cannot restore irq state out of order, expected id={id_} acquired at insn_idx={slot}")
    refs.forget(env, held.reg.ref_obj_id)
    frame.stack[index] = StackSlot(_EMPTY)
