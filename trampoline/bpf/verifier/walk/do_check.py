"""The walk of all paths through one function and its callees (``do_check``)."""

from collections.abc import Callable
from errno import E2BIG

from trampoline.bpf.errors import BytecodeError
from trampoline.bpf.isa.insn import CALL, EXIT, GOTO, GOTOL, GOTOX, LD_IMM64, MAY_GOTO, CallKind, Cls, Insn, Mode, Size
from trampoline.bpf.isa.text import format_insn
from trampoline.bpf.verifier.access.memory import check_mem_access
from trampoline.bpf.verifier.calls.calls import check_helper_call
from trampoline.bpf.verifier.calls.frames import call, check_leaks, check_range, clobber, leave, previous_round, widen
from trampoline.bpf.verifier.calls.kfuncs import check_kfunc_call, is_throw
from trampoline.bpf.verifier.calls.return_code import check_return_code
from trampoline.bpf.verifier.prepass.cfg import Flow
from trampoline.bpf.verifier.prepass.insn_fields import check_fields
from trampoline.bpf.verifier.state.env import Env
from trampoline.bpf.verifier.state.register_names import describe_frame, type_name
from trampoline.bpf.verifier.state.result import Pointee
from trampoline.bpf.verifier.state.state import UNKNOWN_REG, FuncFrame, Reg, VerifierState
from trampoline.bpf.verifier.values.kinds import RegKind
from trampoline.bpf.verifier.walk import alu, atomics, imm64, jumps
from trampoline.bpf.verifier.walk.loop_limit import Foresight
from trampoline.bpf.verifier.walk.prune import Checkpoints, finish

INSN_LIMIT = 1_000_000
_BYTES = {Size.B: 1, Size.H: 2, Size.W: 4, Size.DW: 8}
_MAY_READ_SKB = frozenset({1, 3, 4, 8})


def walk(env: Env, flow: Flow, start: VerifierState, slot: int) -> None:
    """Walk every path from ``slot`` on. Refuses, or returns when all of them are finished."""
    checkpoints = Checkpoints(flow)
    foresight = Foresight(flow, INSN_LIMIT)
    env.state, env.frame = start, start.frame
    env.slot = slot
    env.pending = []
    insns, prune, facts = env.insns, flow.prune, env.facts
    checked = env.checked_fields
    while True:
        slot = env.slot
        env.processed += 1
        if env.processed > INSN_LIMIT:
            env.refuse(E2BIG, f"BPF program is too large. Processed {env.processed} insn")
        if slot in prune and checkpoints.visit(env):
            env.say(f"{slot}: safe")
            if not _next_path(env):
                return
            continue
        insn = insns[slot]
        if insn is None:
            env.invalid("invalid BPF_LD_IMM insn")
        _log_insn(env, slot, insn)
        if env.processed >= foresight.at and foresight.look(env, insn):
            env.processed = INSN_LIMIT + 1
            env.refuse(E2BIG, f"BPF program is too large. Processed {env.processed} insn")
        if not checked[slot]:
            check_fields(env, insn)
            checked[slot] = 1
        facts[slot].seen = True
        env.next_slot = slot + insn.slots
        code = insn.code
        cls = code & 7
        if cls == Cls.ALU64 or cls == Cls.ALU:
            alu.step(env, insn)
        elif cls == Cls.JMP or cls == Cls.JMP32:
            checkpoints.jumps += 1
            if code == EXIT:
                if _exit(env):
                    if not _next_path(env):
                        return
                    continue
            else:
                _STEPS.get(code, jumps.step)(env, insn)
                if code == CALL and insn.src == CallKind.KFUNC and is_throw(env, insn):
                    check_leaks(env, at="bpf_throw")
                    if not _next_path(env):
                        return
                    continue
        else:
            _STEPS[code](env, insn)
        if env.log_level >= 2:
            _log_state(env)
        env.slot = env.next_slot


def _next_path(env: Env) -> bool:
    """End the current path and start the next one; False if none is left."""
    finish(env.state)
    if not env.pending:
        return False
    state, slot, from_slot, log_length = env.pending.pop()
    if env.log_level < 2:
        del env.log[log_length:]
    env.state, env.frame = state, state.frame
    env.slot = slot
    registers = f": {describe_frame(env.frame)}" if env.log_level >= 2 else ""
    env.say(f"\nfrom {from_slot} to {slot}{registers}")
    return True


def _log_insn(env: Env, slot: int, insn: Insn) -> None:
    text = env.texts.get(slot)
    if text is None:
        try:
            shown = format_insn(insn)
        except BytecodeError:
            shown = "BUG"
        text = env.texts[slot] = f"{slot}: ({insn.code:02x}) {shown}"
        line = env.line_at.get(slot)
        if line is not None:
            text = env.texts[slot] = f"; {line.text} @ {line.file.rsplit('/', 1)[-1]}:{line.line}\n{text}"
    env.log.append(text)


def _log_state(env: Env) -> None:
    env.log[-1] = f"{env.log[-1]:<38}; {describe_frame(env.frame)}"


def _exit(env: Env) -> bool:
    """Walk EXIT: True if the path ends, False if it continues in the caller."""
    frame = env.frame
    if len(env.state.frames) > 1:
        if frame.in_callback:
            check_leaks(env, callback=frame)
        leave(env)
        return False
    check_leaks(env)
    env.read(0)
    if not env.frame.regs[0].is_scalar and not env.capabilities.ptr_leaks:
        env.denied("R0 leaks addr as return value")
    if frame.in_async_callback:
        if not frame.regs[0].is_scalar:
            env.invalid("At async callback the register R0 is not a scalar value")
        check_range(env, 0, frame.callback_range, "At async callback return")
    else:
        check_return_code(env)
    return True


def _load(env: Env, insn: Insn) -> None:
    base = env.read(insn.src)
    env.check_writable(insn.dst)
    check_mem_access(
        env,
        insn.src,
        insn.off,
        _BYTES[insn.size],
        False,
        insn.dst,
        sign_extend=insn.code & 0xE0 == Mode.MEMSX,
    )
    _note_pointee(env, base)


def _store(env: Env, insn: Insn) -> None:
    env.read(insn.src)
    base = env.read(insn.dst)
    check_mem_access(env, insn.dst, insn.off, _BYTES[insn.size], True, insn.src)
    _note_pointee(env, base)


def _store_constant(env: Env, insn: Insn) -> None:
    base = env.read(insn.dst)
    if base.kind is RegKind.PTR_TO_CTX and not env.rules.ctx_store_imm:
        env.denied(f"BPF_ST stores into R{insn.dst} {type_name(base)} is not allowed")
    check_mem_access(env, insn.dst, insn.off, _BYTES[insn.size], True, -1, constant=insn.imm)
    _note_pointee(env, base)


_APART = frozenset({RegKind.PTR_TO_CTX, RegKind.PTR_TO_BTF_ID, RegKind.PTR_TO_ARENA, RegKind.PTR_TO_SOCKET})


def _note_pointee(env: Env, base: Reg) -> None:
    """One instruction has one rewritten form: all of its pointers must be of one kind (``save_aux_ptr_type``)."""
    seen = env.pointer_kinds.get(env.slot)
    if seen is None:
        env.pointer_kinds[env.slot] = base.kind
    elif seen is not base.kind and (seen in _APART or base.kind in _APART):
        env.invalid("same insn cannot be used with different pointers")
    if env.fact.pointee is None:
        env.fact.pointee = Pointee.OTHER


def _atomic(env: Env, insn: Insn) -> None:
    target = env.frame.regs[insn.dst]
    atomics.step(env, insn)
    _note_pointee(env, target)


def _goto(env: Env, insn: Insn) -> None:
    env.next_slot = env.slot + 1 + (insn.imm if insn.code == GOTOL else insn.off)


def _gotox(env: Env, _insn: Insn) -> None:
    env.unsupported("indirect jumps")


def _may_goto(env: Env, insn: Insn) -> None:
    """Continue, or jump if the program has looped too often."""
    env.may_gotos.add(env.slot)
    other = env.push_branch(env.slot + 1)
    other.may_goto_depth += 1
    previous = previous_round(env)
    if previous is not None:
        widen(previous, other)
    env.next_slot = env.slot + 1 + insn.off


def _call(env: Env, insn: Insn) -> None:
    if env.state.active_locks and insn.src == CallKind.SUBPROG and not env.rules.extended_set:
        env.invalid("function calls are not allowed while holding a lock")
    if insn.src == CallKind.SUBPROG:
        call(env, insn)
        return
    env.entered_callback = None
    if insn.src == CallKind.KFUNC:
        check_kfunc_call(env, insn)
    else:
        check_helper_call(env, insn)
    entered: FuncFrame | None = env.entered_callback
    if entered is not None:
        env.state.frames.append(entered)
        env.frame = entered
        env.next_slot = env.subprogs[entered.subprog].start


def _load_packet(env: Env, insn: Insn) -> None:
    """LD_ABS and LD_IND (``check_ld_abs``): R6 is the context, R0 the loaded value."""
    if env.program.prog_type not in _MAY_READ_SKB:
        env.invalid("BPF_LD_[ABS|IND] instructions not allowed for this program type")
    context = env.read(6)
    check_leaks(env, at="BPF_LD_[ABS|IND]")
    if context.kind is not RegKind.PTR_TO_CTX:
        env.invalid("at the time of BPF_LD_ABS|IND R6 != pointer to skb")
    if insn.mode == Mode.IND:
        env.read(insn.src)
    clobber(env.frame)
    env.frame.regs[0] = UNKNOWN_REG


_STEPS: dict[int, Callable[[Env, Insn], None]] = {
    GOTO: _goto,
    GOTOL: _goto,
    GOTOX: _gotox,
    MAY_GOTO: _may_goto,
    CALL: _call,
    LD_IMM64: imm64.step,
    **{Cls.LD | mode | size: _load_packet for mode in (Mode.ABS, Mode.IND) for size in Size},
    **{Cls.LDX | mode | size: _load for mode in (Mode.MEM, Mode.MEMSX) for size in Size},
    **{Cls.ST | Mode.MEM | size: _store_constant for size in Size},
    **{Cls.STX | Mode.MEM | size: _store for size in Size},
    **{Cls.STX | Mode.ATOMIC | size: _atomic for size in Size},
}
