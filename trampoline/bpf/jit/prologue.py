"""Prologue and epilogue: frame, tail call counter, saved registers, arena, private stack, return."""

from dataclasses import dataclass

from asm.encodings import ENDBR64, NOP5
from emu.machine.address_map import round_up
from trampoline.bpf.isa.insn import TAIL_CALL, Insn
from trampoline.bpf.jit.alu import add_percpu
from trampoline.bpf.jit.encode import (
    R9,
    R12,
    R13,
    R14,
    R15,
    RAX,
    RBP,
    RBX,
    RDX,
    RSI,
    RSP,
    WIDE,
    alu_imm,
    imm32,
    mov,
    mov_imm64,
    pop,
    push,
    reg_reg,
)
from trampoline.bpf.jit.errors import JitError
from trampoline.bpf.jit.jit_input import JitFunc
from trampoline.bpf.jit.rules import JitBoot, JitRules

MAX_TAIL_CALL_CNT = 33
CALLEE_SAVED = (RBX, R13, R14, R15)
"""Registers of R6 to R9."""


@dataclass(frozen=True, slots=True)
class JitFrame:
    """A function's stack frame, from the saved rbp downwards."""

    stack: int
    """Size of the eBPF stack in bytes, a multiple of 8."""
    counts_tail_calls: bool
    """True if a tail call counter is below the stack (by pointer: two words)."""
    saved: tuple[int, ...]
    """Registers pushed, in this order."""
    out_args: int = 0
    """Bytes of stack arguments for the functions that it calls."""
    counter_words: int = 0

    @property
    def depth(self) -> int:
        """Distance between rbp and rsp in bytes."""
        return self.stack + 8 * self.counter_words + 8 * len(self.saved) + self.out_args

    @classmethod
    def of(cls, func: JitFunc, rules: JitRules) -> "JitFrame":
        """The frame of a function."""
        counts = func.tail_call_reachable or any(insn.code == TAIL_CALL for insn in func.insns)
        used = _used_registers(func.insns)
        saved = tuple(reg for number, reg in enumerate(CALLEE_SAVED, 6) if number in used)
        if func.exception_boundary:
            saved = (R12, *CALLEE_SAVED)
        elif func.arena:
            saved = (R12, *saved)
        words = (2 if rules.tail_call_by_pointer else 1) if counts else 0
        stack = 0 if func.private_stack else round_up(func.stack_depth, 8)
        return cls(stack, counts, saved, _out_args(func.insns, rules), words)


def _used_registers(insns: tuple[Insn, ...]) -> set[int]:
    return {reg for insn in insns for reg in (insn.dst, insn.src) if 6 <= reg <= 9}


def _out_args(insns: tuple[Insn, ...], rules: JitRules) -> int:
    """Bytes below the saved registers for arguments from the seventh on; the sixth is in r9."""
    base = rules.stack_args_register
    if base is None:
        return 0
    stores = [-insn.off for insn in insns if insn.dst == base and insn.cls in (2, 3)]
    return max(stores, default=8) - 8


def prologue(func: JitFunc, frame: JitFrame, rules: JitRules, boot: JitBoot) -> bytes:
    """The first instructions. Raises JitError for a private stack without a known per-CPU base."""
    endbr = ENDBR64 if rules.endbr else b""
    code = endbr + NOP5
    is_main = func.index == 0
    if not func.from_classic:
        clears = frame.counts_tail_calls and is_main
        if rules.tail_call_by_pointer:
            code += reg_reg(b"\x31", RAX, RAX, WIDE) if clears else b"\x0f\x1f\x00"  # xor rax, rax; nop3
        else:
            code += reg_reg(b"\x31", RAX, RAX) if clears else b"\x66\x90"  # xor eax, eax; nop2
    if func.exception_cb:
        # rsp and rbp are the second and third argument; the boundary's registers are above.
        code += mov(RSP, RSI) + mov(RBP, RDX)
        code += b"".join(map(pop, reversed((R12, *CALLEE_SAVED))))
        code += mov(RSP, RBP)
    else:
        code += push(RBP) + mov(RBP, RSP)
    code += endbr
    if frame.stack:
        code += reg_reg(b"\x81", RSP, 5, WIDE) + imm32(frame.stack)  # sub rsp, stack
    if frame.counts_tail_calls:
        code += _push_counter(is_main, rules)
    code += b"".join(map(push, frame.saved))
    if frame.out_args:
        code += alu_imm(5, 0, RSP, frame.out_args, wide=True)
    if func.arena:
        code += mov_imm64(R12, func.arena.kern_vm_start, sign_extended=rules.sign_extended_imm)
    if func.private_stack:
        if boot.this_cpu_off is None:
            raise JitError("a private stack needs the address of this_cpu_off")
        top = func.private_stack + rules.private_stack_guard + round_up(func.stack_depth, 8)
        code += mov_imm64(R9, top, sign_extended=rules.sign_extended_imm)
        code += add_percpu(R9, R9, boot.this_cpu_off)
    return code


def _push_counter(is_main: bool, rules: JitRules) -> bytes:
    if not rules.tail_call_by_pointer:
        return push(RAX)
    if not is_main:
        return push(RAX) + push(RAX)
    # rax is the count at the program's entry or in a tail call from its main function, otherwise already the address.
    store = push(RAX) + mov(RAX, RSP) + b"\xeb\x01"  # jmp past the push
    compare = reg_reg(b"\x83", RAX, 7, WIDE) + bytes((MAX_TAIL_CALL_CNT,))
    return compare + b"\x77" + len(store).to_bytes() + store + push(RAX) + push(RAX)  # ja past the store


def restore(func: JitFunc, frame: JitFrame) -> bytes:
    """Pop the saved registers."""
    code = alu_imm(0, 0, RSP, frame.out_args, wide=True) if frame.out_args else b""
    return code + b"".join(map(pop, reversed(frame.saved)))
