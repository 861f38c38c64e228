"""Helpers that call a function of the program: its registers at entry, and its allowed results."""

from trampoline.bpf.program import MapSpec
from trampoline.bpf.uapi import MapType
from trampoline.bpf.verifier.calls.frames import Setup, push_async_callback, push_callback
from trampoline.bpf.verifier.state.call_meta import CallMeta
from trampoline.bpf.verifier.state.env import Env
from trampoline.bpf.verifier.state.state import NOT_INIT, UNKNOWN_REG, FuncFrame, Reg
from trampoline.bpf.verifier.values.kinds import Flag, RegKind

_ENOTSUPP = 524
_ITERABLE = (
    MapType.HASH,
    MapType.PERCPU_HASH,
    MapType.LRU_HASH,
    MapType.LRU_PERCPU_HASH,
    MapType.ARRAY,
    MapType.PERCPU_ARRAY,
)


def call_back(env: Env, meta: CallMeta) -> None:
    """Walk the callback of a helper that has one; does nothing for others. The arguments are already checked."""
    if meta.name == "for_each_map_elem":
        if meta.map is None or meta.map.type not in _ITERABLE:
            env.refuse(_ENOTSUPP, "callback function not allowed for map")
        push_callback(env, meta.subprog, _for_each(meta.map, meta.map_uid))
    elif meta.name == "loop":
        _note_inlining(env, meta)
        push_callback(env, meta.subprog, _loop, limit=env.reg(1).var.umax)
    elif meta.name == "find_vma":
        push_callback(env, meta.subprog, _find_vma)
    elif meta.name == "user_ringbuf_drain":
        push_callback(env, meta.subprog, _drain)
    elif meta.name == "timer_set_callback":
        assert meta.map is not None
        push_async_callback(env, meta.subprog, _timer(meta.map, meta.map_uid))


def _set(callee: FuncFrame, *regs: Reg) -> None:
    for n in range(5):
        callee.regs[n + 1] = regs[n] if n < len(regs) else NOT_INIT


def _loop(env: Env, caller: FuncFrame, callee: FuncFrame) -> None:
    _set(callee, UNKNOWN_REG, caller.regs[3])


def _map_regs(spec: MapSpec, uid: int) -> tuple[Reg, Reg, Reg]:
    return (
        Reg(RegKind.CONST_PTR_TO_MAP, map=spec, map_uid=uid),
        Reg(RegKind.PTR_TO_MAP_KEY, map=spec, map_uid=uid),
        Reg(RegKind.PTR_TO_MAP_VALUE, map=spec, map_uid=uid),
    )


def _for_each(spec: MapSpec, uid: int) -> Setup:
    def setup(env: Env, caller: FuncFrame, callee: FuncFrame) -> None:
        _set(callee, *_map_regs(spec, uid), caller.regs[3])

    return setup


def _timer(spec: MapSpec, uid: int) -> Setup:
    def setup(env: Env, caller: FuncFrame, callee: FuncFrame) -> None:
        _set(callee, *_map_regs(spec, uid))

    return setup


def _find_vma(env: Env, caller: FuncFrame, callee: FuncFrame) -> None:
    btf = env.kernel.btf
    trust = Flag.PTR_TRUSTED if env.kernel.rules.calls.trusted else Flag.NONE
    task = Reg(RegKind.PTR_TO_BTF_ID, trust, btf=btf, btf_id=btf.struct_named("task_struct"))
    vma = Reg(RegKind.PTR_TO_BTF_ID, trust, btf=btf, btf_id=btf.struct_named("vm_area_struct"))
    _set(callee, task, vma, caller.regs[4])


def _drain(env: Env, caller: FuncFrame, callee: FuncFrame) -> None:
    _set(callee, Reg(RegKind.CONST_PTR_TO_DYNPTR, Flag.DYNPTR_TYPE_LOCAL), caller.regs[3])


def _note_inlining(env: Env, meta: CallMeta) -> None:
    """``update_loop_inline_state``: the call is inlined if its flags are 0 and it has one callback."""
    fact = env.fact
    fits = env.reg(4).is_null
    if not fact.calls_seen:
        fact.calls_seen = True
        fact.inlines_loop = fits
        fact.loop_callback = meta.subprog
    elif fact.inlines_loop:
        fact.inlines_loop = fits and fact.loop_callback == meta.subprog
