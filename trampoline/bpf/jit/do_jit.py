"""Translates each instruction to a piece of machine code (``do_jit``)."""

from collections.abc import Sequence
from dataclasses import replace

from asm.encodings import ENDBR64
from emu.machine.address_map import ADDRESS_MASK
from trampoline.bpf.isa.insn import (
    ADDR_PERCPU,
    ADDR_SPACE_CAST,
    CALL,
    EXIT,
    GOTO,
    GOTOL,
    GOTOX,
    LD_IMM64,
    NOSPEC,
    TAIL_CALL,
    Alu,
    Atomic,
    CallKind,
    Cls,
    Insn,
    Mode,
    Size,
)
from trampoline.bpf.jit import alu, memory
from trampoline.bpf.jit.calls import Calls
from trampoline.bpf.jit.emitted_insns import TO_EXIT, Branch, EmittedInsn, Pieces
from trampoline.bpf.jit.encode import R9, R12, RAX, RBP, mov, mov_imm64
from trampoline.bpf.jit.errors import JitError
from trampoline.bpf.jit.jit_image import ExtableEntry
from trampoline.bpf.jit.jit_input import JitFunc
from trampoline.bpf.jit.jumps import CONDITIONS, compare_immediate, compare_registers
from trampoline.bpf.jit.prologue import JitFrame, prologue
from trampoline.bpf.jit.rules import ArenaFaults, JitBoot, JitRules, ProbeCheck

_FP = 10
_LFENCE = b"\x0f\xae\xe8"
_EX_TYPE_BPF = 7
_KEEP = 1
"""Fixup value for "no register to clear" (DONT_CLEAR)."""
_FETCH = 1
"""Atomic operations with this bit return the old value."""
_ARENA_ACCESS, _ARENA_WRITE = 1 << 31, 1 << 30


def translate(func: JitFunc, rules: JitRules, boot: JitBoot) -> Pieces:
    """The pieces of a function. Raises JitError for an instruction that this JIT lacks."""
    return _Translation(func, rules, boot).run()


class _Translation:
    def __init__(self, func: JitFunc, rules: JitRules, boot: JitBoot) -> None:
        self._func, self._rules, self._boot = func, rules, boot
        self._frame = JitFrame.of(func, rules)
        self._calls = Calls(func, self._frame, rules, boot)
        self._bmi2 = rules.bmi2_shifts and boot.bmi2
        registers = list(rules.registers)
        if func.private_stack:
            registers[_FP] = R9
        self._registers = registers
        self._exited = False

    def run(self) -> Pieces:
        pieces = Pieces(prologue(self._func, self._frame, self._rules, self._boot))
        items = pieces.items
        targets = self._func.indirect_targets
        for insn in self._func.insns:
            slot = len(items)
            try:
                piece = self._piece(insn, slot)
            except JitError as error:
                raise error if error.slot is not None else JitError(error.reason, slot) from None
            if slot in targets and self._rules.endbr:
                piece = _prefixed(ENDBR64, piece)
            items.append(piece)
            if insn.code == LD_IMM64:
                items.append(None)
        self._check_jumps(items)
        return pieces

    def _check_jumps(self, items: Sequence[EmittedInsn | None]) -> None:
        slot = 0
        for insn in self._func.insns:
            if insn.jump is not None:
                goal = slot + 1 + insn.jump
                if not 0 <= goal < len(items) or items[goal] is None:
                    raise JitError(f"a jump to slot {goal}, where the function has no instruction", slot)
            slot += insn.slots

    def _piece(self, insn: Insn, slot: int) -> EmittedInsn:
        cls = insn.code & 7
        if cls in (Cls.ALU, Cls.ALU64):
            return EmittedInsn(self._alu(insn, cls == Cls.ALU64))
        if cls in (Cls.JMP, Cls.JMP32):
            return self._jump(insn, slot, cls == Cls.JMP)
        if insn.code == LD_IMM64:
            return EmittedInsn(
                mov_imm64(self._reg(insn.dst), insn.imm, sign_extended=self._rules.sign_extended_imm),
            )
        if insn.code == NOSPEC:
            return EmittedInsn(_LFENCE)
        if self._rules.stack_args_register is not None and self._rules.stack_args_register in (
            insn.dst,
            insn.src,
        ):
            return EmittedInsn(self._stack_arg(insn))
        return self._memory(insn, cls)

    def _reg(self, number: int) -> int:
        registers = self._registers
        if number >= len(registers) or registers[number] < 0:
            raise JitError(f"no register {number}")
        return registers[number]

    def _alu(self, insn: Insn, wide: bool) -> bytes:
        op, dst = insn.code & 0xF0, self._reg(insn.dst)
        from_register = bool(insn.code & 8)
        if op == Alu.END:
            if wide or from_register:
                return alu.byte_swap(dst, insn.imm)
            return alu.truncate(dst, insn.imm)
        if op == Alu.NEG:
            return alu.negate(dst, wide)
        if op in (Alu.DIV, Alu.MOD):
            src = self._reg(insn.src) if from_register else None
            return alu.divide(op, dst, src, insn.imm, wide, insn.off == 1)
        if not from_register:
            return alu.with_immediate(op, dst, insn.imm, wide)
        src = self._reg(insn.src)
        if op == Alu.MOV and insn.off:
            return self._special_move(insn, dst, src, wide)
        if op in (Alu.LSH, Alu.RSH, Alu.ARSH):
            return alu.shift(op, dst, src, wide, bmi2=self._bmi2, frugal=self._rules.frugal_rcx_shifts)
        return alu.with_register(op, dst, src, wide)

    def _special_move(self, insn: Insn, dst: int, src: int, wide: bool) -> bytes:
        if wide and insn.off == ADDR_SPACE_CAST:
            if self._func.arena is None:
                raise JitError("a cast of addresses without an arena")
            return alu.cast_to_user(dst, src, self._func.arena.user_vm_start)
        if wide and insn.off == ADDR_PERCPU:
            if self._boot.this_cpu_off is None:
                raise JitError("a per-CPU address needs the address of this_cpu_off")
            return alu.add_percpu(dst, src, self._boot.this_cpu_off)
        if insn.off not in (8, 16, 32):
            raise JitError(f"a move of kind {insn.off}")
        return alu.sign_extend(dst, src, insn.off, wide)

    def _jump(self, insn: Insn, slot: int, wide: bool) -> EmittedInsn:
        code = insn.code
        if code in (GOTO, GOTOL):
            return EmittedInsn(b"", Branch(slot + 1 + (insn.imm if code == GOTOL else insn.off)))
        if code == CALL:
            if not insn.imm:
                raise JitError("a call without a target")
            target = self._func.call_base + insn.imm & ADDRESS_MASK
            return self._calls.call(target, of_bpf=insn.src == CallKind.SUBPROG)
        if code == EXIT:
            if self._exited:
                return EmittedInsn(b"", Branch(TO_EXIT))
            self._exited = True
            return self._calls.exit()
        if code == TAIL_CALL:
            return self._calls.tail_call_direct(insn.imm) if insn.imm else self._calls.tail_call_indirect()
        if code == GOTOX:
            return self._calls.jump(self._reg(insn.dst))
        op = code & 0xF0
        if op not in CONDITIONS:
            raise JitError(f"a jump of code {code:#x}")
        dst = self._reg(insn.dst)
        if code & 8:
            compare = compare_registers(op, dst, self._reg(insn.src), wide)
        else:
            compare = compare_immediate(op, dst, insn.imm, wide)
        return EmittedInsn(compare, Branch(slot + 1 + insn.off, CONDITIONS[op]))  # type: ignore[index]

    def _memory(self, insn: Insn, cls: int) -> EmittedInsn:
        mode, size = insn.code & 0xE0, insn.code & 0x18
        dst = self._reg(insn.dst)
        if cls == Cls.ST:
            if mode == Mode.MEM:
                return EmittedInsn(memory.store_immediate(size, dst, insn.imm, insn.off))
            if mode == Mode.PROBE_MEM32:
                code = memory.store_immediate(size, dst, insn.imm, insn.off, index=R12)
                return EmittedInsn(code, fault=self._arena_fault(len(code), insn.off, dst, stores=True))
        src = self._reg(insn.src)
        if cls == Cls.STX:
            return self._store(insn, mode, size, dst, src)
        if cls == Cls.LDX:
            return self._load(insn, mode, size, dst, src)
        raise JitError(f"an instruction of code {insn.code:#x}")

    def _store(self, insn: Insn, mode: int, size: int, dst: int, src: int) -> EmittedInsn:
        off = insn.off
        match mode:
            case Mode.MEM:
                return EmittedInsn(memory.store(size, dst, src, off))
            case Mode.PROBE_MEM32:
                code = memory.store(size, dst, src, off, index=R12)
                return EmittedInsn(code, fault=self._arena_fault(len(code), off, dst, stores=True))
            case Mode.ATOMIC:
                if insn.imm == Atomic.LOAD_ACQ:
                    return EmittedInsn(memory.load(size, dst, src, off))
                if insn.imm == Atomic.STORE_REL:
                    return EmittedInsn(memory.store(size, dst, src, off))
                if memory.needs_loop(insn.imm):
                    return EmittedInsn(memory.fetch_by_loop(insn.imm, size, dst, src, off))
                return EmittedInsn(memory.atomic(insn.imm, size, dst, src, off, lock=self._locks(insn.imm)))
            case Mode.PROBE_ATOMIC:
                return self._arena_atomic(insn, size, dst, src)
        raise JitError(f"a store of code {insn.code:#x}")

    def _arena_atomic(self, insn: Insn, size: int, dst: int, src: int) -> EmittedInsn:
        op, off = insn.imm, insn.off
        if op == Atomic.LOAD_ACQ:
            code = memory.load(size, dst, src, off, index=R12)
            if self._rules.arena_faults is ArenaFaults.ACCESS:  # by its class, load_acquire is a store
                return EmittedInsn(code, fault=self._arena_fault(len(code), off, dst, stores=True))
            return EmittedInsn(code, fault=self._arena_fault(len(code), off, src, stores=False, result=dst))
        if memory.needs_loop(op):
            raise JitError("an atomic operation in an arena that needs a loop")
        if op == Atomic.STORE_REL:
            code, result = memory.store(size, dst, src, off, index=R12), None
        else:
            code = memory.atomic(op, size, dst, src, off, lock=self._locks(op), index=R12)
            result = None
            if self._rules.arena_faults is ArenaFaults.DIRECTION and op & _FETCH:
                result = RAX if op == Atomic.CMPXCHG else src
        return EmittedInsn(code, fault=self._arena_fault(len(code), off, dst, stores=True, result=result))

    def _locks(self, op: int) -> bool:
        return op != Atomic.XCHG or self._rules.locks_xchg

    def _load(self, insn: Insn, mode: int, size: int, dst: int, src: int) -> EmittedInsn:
        off = insn.off
        match mode:
            case Mode.MEM:
                return EmittedInsn(memory.load(size, dst, src, off))
            case Mode.MEMSX:
                return EmittedInsn(memory.load(size, dst, src, off, signed=True))
            case Mode.PROBE_MEM | Mode.PROBE_MEMSX:
                return self._probe(memory.load(size, dst, src, off, signed=mode == Mode.PROBE_MEMSX), dst, src, off)
            case Mode.PROBE_MEM32 | Mode.PROBE_MEM32SX:
                signed = mode == Mode.PROBE_MEM32SX
                code = memory.load(size, dst, src, off, signed=signed, index=R12)
                return EmittedInsn(code, fault=self._arena_fault(len(code), off, src, stores=False, result=dst))
        raise JitError(f"a load of code {insn.code:#x}")

    def _probe(self, load: bytes, dst: int, src: int, off: int) -> EmittedInsn:
        """A load that returns 0 if its address is not a kernel address or faults."""
        check = memory.check_by_carry if self._rules.probe is ProbeCheck.CARRY else memory.check_by_range
        before = check(dst, src, off, self._boot.user_limit)
        fixup = len(load) | _saved(dst) << 8
        code = before[:-1] + len(load).to_bytes() + load
        return EmittedInsn(code, fault=ExtableEntry(len(before), fixup, _EX_TYPE_BPF))

    def _arena_fault(
        self, length: int, off: int, base: int, *, stores: bool, result: int | None = None
    ) -> ExtableEntry:
        """Table entry of an arena access: a fault sets ``result`` to 0; newer kernels report the address too."""
        cleared = _KEEP if result is None else _saved(result)
        fixup, data = length | cleared << 8, _EX_TYPE_BPF
        if self._rules.arena_faults is not ArenaFaults.REGISTER:
            fixup |= _saved(base) << 16 | _ARENA_ACCESS
            if stores and self._rules.arena_faults is ArenaFaults.DIRECTION:
                fixup |= _ARENA_WRITE
            data |= (off & 0xFFFF) << 16
        return ExtableEntry(0, fixup, data)

    def _stack_arg(self, insn: Insn) -> bytes:
        """An argument from the sixth on: r9, then the stack above the return address, or below the saved registers."""
        cls, mode, size = insn.code & 7, insn.code & 0xE0, insn.code & 0x18
        if size != Size.DW or mode != Mode.MEM:
            raise JitError("an argument on the stack is 8 bytes")
        if cls == Cls.LDX:
            dst = self._reg(insn.dst)
            return mov(dst, R9) if insn.off == 8 else memory.load(size, dst, RBP, insn.off)
        if cls == Cls.STX:
            src = self._reg(insn.src)
            if insn.off == -8:
                return mov(R9, src)
            return memory.store(size, RBP, src, self._out_arg(insn.off))
        if insn.off == -8:
            return alu.with_immediate(Alu.MOV, R9, insn.imm, True)
        return memory.store_immediate(size, RBP, insn.imm, self._out_arg(insn.off))

    def _out_arg(self, off: int) -> int:
        """Offset from rbp of an outgoing argument: the seventh is at rsp."""
        return -self._frame.depth - off - 16


def _saved(register: int) -> int:
    """Offset in struct pt_regs of a register that a program may write."""
    offset = memory.PT_REGS.get(register)
    if offset is None:
        raise JitError("an access that may fault uses the frame pointer")
    return offset


def _prefixed(first: bytes, piece: EmittedInsn) -> EmittedInsn:
    """A piece with other code before it."""
    n = len(first)
    return replace(
        piece,
        code=first + piece.code,
        distances=tuple(replace(d, offset=d.offset + n) for d in piece.distances),
        fault=piece.fault and replace(piece.fault, offset=piece.fault.offset + n),
        poke=piece.poke and replace(piece.poke, bypass=piece.poke.bypass + n, target=piece.poke.target + n),
    )
