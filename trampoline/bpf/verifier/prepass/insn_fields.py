"""Validity of an instruction's code in a release, and of its fields.

The messages are the kernel's; older kernels check fields when an instruction is walked, 7.1 and later before.
"""

from trampoline.bpf.isa.forms import LOADABLE
from trampoline.bpf.isa.insn import (
    ADDR_SPACE_CAST,
    CALL,
    EXIT,
    GOTOX,
    LD_IMM64,
    MAY_GOTO,
    STACK_ARGS_REG,
    Alu,
    Atomic,
    CallKind,
    Cls,
    Imm64,
    Insn,
    Jmp,
    Mode,
    Size,
    X,
)
from trampoline.bpf.verifier.rules.engine_rules import EngineRules
from trampoline.bpf.verifier.state.env import Env

_ATOMICS = frozenset(Atomic) - {Atomic.LOAD_ACQ, Atomic.STORE_REL}
_NARROW_ATOMICS = frozenset(Cls.STX | Mode.ATOMIC | size for size in (Size.B, Size.H))
_EXTENDED = frozenset({*(Cls.LDX | Mode.MEMSX | size for size in Size), Cls.ALU64 | Alu.END})


def is_known(code: int, rules: EngineRules) -> bool:
    """``bpf_opcode_in_insntable``."""
    if code not in LOADABLE:
        return False
    if code in _EXTENDED and not rules.extended_set:
        return False
    if code == MAY_GOTO and not rules.may_goto:
        return False
    if code in _NARROW_ATOMICS and not rules.store_release:
        return False
    return code != GOTOX or rules.indirect_goto


def check_code(env: Env, insn: Insn) -> None:
    """Checks of every instruction before control flow: its code, and fields of loads and stores."""
    cls = insn.code & 7
    if cls == Cls.LDX and insn.mode in (Mode.MEM, Mode.MEMSX) and insn.imm:
        env.invalid("BPF_LDX uses reserved fields")
    if insn.code == LD_IMM64:
        return
    if not is_known(insn.code, env.rules):
        env.invalid(f"unknown opcode {insn.code:02x}")


def check_fields(env: Env, insn: Insn) -> None:
    """Refuse reserved fields, invalid registers and invalid constants of an operation."""
    cls = insn.code & 7
    if cls in (Cls.ALU, Cls.ALU64):
        _check_alu(env, insn, cls == Cls.ALU64)
    elif cls in (Cls.JMP, Cls.JMP32):
        _check_jump(env, insn, cls == Cls.JMP32)
    elif cls == Cls.LDX:
        _check_base(env, insn, insn.src)
        check_number(env, insn.dst)
    elif cls == Cls.STX:
        _check_stx(env, insn)
    elif cls == Cls.ST:
        if insn.mode != Mode.MEM or insn.src:
            env.invalid("BPF_ST uses reserved fields")
        _check_base(env, insn, insn.dst)
    elif insn.mode == Mode.IMM:
        if insn.code != LD_IMM64:
            env.invalid("invalid BPF_LD_IMM insn")
        if insn.off:
            env.invalid("BPF_LD_IMM64 uses reserved fields")
        check_number(env, insn.dst)
    else:
        if insn.dst or insn.off or insn.size == Size.DW or (insn.mode == Mode.ABS and insn.src):
            env.invalid("BPF_LD_[ABS|IND] uses reserved fields")
        check_number(env, insn.src)


def check_number(env: Env, regno: int) -> None:
    """Refuse register numbers above r10."""
    if regno > 10:
        env.invalid(f"R{regno} is invalid")


def _check_base(env: Env, insn: Insn, regno: int) -> None:
    """Check the base register of an access: since 7.2 also r11, for stack arguments."""
    if regno == STACK_ARGS_REG and env.rules.stack_arguments and insn.mode == Mode.MEM and insn.size == Size.DW:
        env.unsupported("arguments on the stack")
    check_number(env, regno)


def _check_alu(env: Env, insn: Insn, is64: bool) -> None:
    op, from_reg = insn.code & 0xF0, bool(insn.code & X)
    if op == Alu.NEG:
        if from_reg or insn.src or insn.off or insn.imm:
            env.invalid("BPF_NEG uses reserved fields")
    elif op == Alu.END:
        if insn.src or insn.off or insn.imm not in (16, 32, 64) or (is64 and from_reg):
            env.invalid("BPF_END uses reserved fields")
    elif op == Alu.MOV:
        _check_mov(env, insn, is64, from_reg)
    else:
        signed = env.rules.extended_set and op in (Alu.DIV, Alu.MOD)
        if (insn.imm if from_reg else insn.src) or insn.off not in ((0, 1) if signed else (0,)):
            env.invalid("BPF_ALU uses reserved fields")
        if op in (Alu.DIV, Alu.MOD) and not from_reg and not insn.imm:
            env.invalid("div by zero")
        if op in (Alu.LSH, Alu.RSH, Alu.ARSH) and not from_reg and not 0 <= insn.imm < (64 if is64 else 32):
            env.invalid(f"invalid shift {insn.imm}")
    if from_reg and op != Alu.END:
        check_number(env, insn.src)
    check_number(env, insn.dst)


def _check_mov(env: Env, insn: Insn, is64: bool, from_reg: bool) -> None:
    if not from_reg:
        if insn.src or insn.off:
            env.invalid("BPF_MOV uses reserved fields")
        return
    if is64 and insn.off == ADDR_SPACE_CAST and env.rules.percpu_and_casts:
        if insn.imm not in (1, 1 << 16):
            env.invalid("addr_space_cast insn can only convert between address space 1 and 0")
        return
    widths: tuple[int, ...] = (0,)
    if env.rules.extended_set:
        widths = (0, 8, 16, 32) if is64 else (0, 8, 16)
    if insn.imm or insn.off not in widths:
        env.invalid("BPF_MOV uses reserved fields")


def _check_jump(env: Env, insn: Insn, is32: bool) -> None:
    op, from_reg = insn.code & 0xF0, bool(insn.code & X)
    if op == Jmp.CALL:
        known = insn.src in tuple(CallKind)
        if from_reg or is32 or insn.dst or not known or (insn.off and insn.src != CallKind.KFUNC):
            env.invalid("BPF_CALL uses reserved fields")
    elif op == Jmp.JA:
        if insn.code == GOTOX:
            if insn.src or insn.imm or insn.off:
                env.invalid("BPF_JA|BPF_X uses reserved fields")
            check_number(env, insn.dst)
        elif from_reg or insn.src or insn.dst or (insn.off if is32 else insn.imm):
            env.invalid("BPF_JA uses reserved fields")
    elif op == Jmp.EXIT:
        if insn.code != EXIT or insn.imm or insn.src or insn.dst:
            env.invalid("BPF_EXIT uses reserved fields")
    elif op == Jmp.JCOND:
        nowhere = not insn.off and not env.rules.may_goto_nowhere
        if insn.code != MAY_GOTO or insn.src or insn.dst or insn.imm or nowhere:
            env.invalid(f"invalid may_goto off {insn.off} imm {insn.imm}")
    else:
        if insn.imm if from_reg else insn.src:
            env.invalid("BPF_JMP/JMP32 uses reserved fields")
        if from_reg:
            check_number(env, insn.src)
        check_number(env, insn.dst)


def _check_stx(env: Env, insn: Insn) -> None:
    if insn.mode == Mode.ATOMIC:
        if insn.imm in (Atomic.LOAD_ACQ, Atomic.STORE_REL) and env.rules.store_release:
            pass
        elif insn.imm not in _ATOMICS:
            env.invalid(f"BPF_ATOMIC uses invalid atomic opcode {insn.imm & 0xFFFFFFFF:02x}")
        elif insn.size not in (Size.W, Size.DW):
            env.invalid("invalid atomic operand size")
    elif insn.mode != Mode.MEM or insn.imm:
        env.invalid("BPF_STX uses reserved fields")
    check_number(env, insn.src)
    _check_base(env, insn, insn.dst)


def is_call_of_function(insn: Insn | None) -> bool:
    """True for a call of one of the program's own functions."""
    return insn is not None and insn.code == CALL and insn.src == CallKind.SUBPROG


def is_function_address(insn: Insn | None) -> bool:
    """True for LD_IMM64 of one of the program's own functions."""
    return insn is not None and insn.code == LD_IMM64 and insn.src == Imm64.FUNC
