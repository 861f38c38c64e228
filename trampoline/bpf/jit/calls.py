"""Calls, tail calls, register jumps, returns: code that leaves the function."""

from asm.encodings import INT3, NOP5
from emu.kernel.text.entry import SITE_SIZE
from trampoline.bpf.jit.emitted_insns import Distance, EmittedInsn, PokeOffsets
from trampoline.bpf.jit.encode import (
    R9,
    RAX,
    RCX,
    RDX,
    REGISTER_NAMES,
    RSI,
    RSP,
    WIDE,
    imm32,
    memory,
    pop,
    push,
    reg_reg,
)
from trampoline.bpf.jit.errors import JitError
from trampoline.bpf.jit.jit_input import JitFunc
from trampoline.bpf.jit.prologue import MAX_TAIL_CALL_CNT, JitFrame, restore
from trampoline.bpf.jit.rules import IndirectJump, JitBoot, JitRules

_ADD_ONE = bytes.fromhex("48830001")  # add qword ptr [rax], 1


class Calls:
    """Emitter of code that leaves a function."""

    def __init__(self, func: JitFunc, frame: JitFrame, rules: JitRules, boot: JitBoot) -> None:
        self._func, self._frame, self._rules, self._boot = func, frame, rules, boot

    def call(self, target: int, *, of_bpf: bool) -> EmittedInsn:
        """A call of a kernel function or of a BPF function."""
        code = b""
        if self._frame.counts_tail_calls and (of_bpf or self._rules.counter_for_all_calls):
            code += self._load_counter()
        if self._func.private_stack:
            code += push(R9)
        code, distances = self._call(code, target)
        if self._func.private_stack:
            code += pop(R9)
        return EmittedInsn(code, distances=distances)

    def _call(self, code: bytes, target: int) -> tuple[bytes, tuple[Distance, ...]]:
        distances: tuple[Distance, ...] = ()
        depth = self._boot.boot.call_depth_offset
        if depth is not None:
            # sar qword ptr gs:[rip + depth], 5: an immediate follows the displacement
            distances = (Distance(len(code) + 4, depth - 1, "call depth"),)
            code += bytes.fromhex("6548c13d") + bytes(4) + b"\x05"
        return code + b"\xe8" + bytes(4), (*distances, Distance(len(code) + 1, target))

    def _load_counter(self) -> bytes:
        # mov rax, [rbp - offset], always with four bytes of offset
        return b"\x48\x8b\x85" + imm32(-self._frame.stack - (16 if self._rules.tail_call_by_pointer else 8))

    def exit(self) -> EmittedInsn:
        """The first exit: restores registers and returns."""
        code = b""
        distances: tuple[Distance, ...] = ()
        if self._func.from_classic and self._func.unprivileged:
            code, distances = self._clear_branch_history(code)
        code += restore(self._func, self._frame) + b"\xc9"  # leave
        thunk = self._boot.boot.return_thunk
        if thunk is not None:
            return EmittedInsn(
                code + b"\xe9" + bytes(4),
                distances=(*distances, Distance(len(code) + 1, thunk, "return thunk")),
                is_exit=True,
            )
        return EmittedInsn(code + b"\xc3" + (INT3 if self._rules.sls else b""), distances=distances, is_exit=True)

    def _clear_branch_history(self, code: bytes) -> tuple[bytes, tuple[Distance, ...]]:
        distances: tuple[Distance, ...] = ()
        if self._boot.clear_bhb_loop is not None:
            code, distances = self._call(code + push(RAX) + push(RCX), self._boot.clear_bhb_loop)
            code += pop(RCX) + pop(RAX)
        if self._boot.clear_bhb_instruction:
            code += bytes.fromhex("f3480f1ef8")  # ibhf
        return code, distances

    def jump(self, reg: int) -> EmittedInsn:
        """``jmp reg``, in the form that the boot's mitigations require. Raises JitError for an unknown thunk."""
        plain = (b"\x41" if reg >= 8 else b"") + bytes((0xFF, 0xE0 + (reg & 7)))
        match self._boot.indirect_jump:
            case IndirectJump.LFENCE:
                return EmittedInsn(b"\x0f\xae\xe8" + plain)
            case IndirectJump.THUNK:
                if reg not in self._boot.thunks:
                    raise JitError(f"no thunk for jumps by {REGISTER_NAMES[reg]} is known")
                target = self._boot.thunks[reg]
                return EmittedInsn(b"\xe9" + bytes(4), distances=(Distance(1, target, "indirect thunk"),))
        return EmittedInsn(plain + (INT3 if self._rules.sls else b""))

    def tail_call_indirect(self) -> EmittedInsn:
        """bpf_tail_call(ctx, map, index) with rdi, rsi, rdx: jump past the program's prologue, or continue."""
        rules = self._rules
        bound = memory(b"\x39", RDX, RSI, rules.max_entries_offset)  # cmp [rsi + max_entries], edx
        # mov rcx, [rsi + rdx * 8 + ptrs]
        program = bytes.fromhex("488b8cd6") + imm32(rules.ptrs_offset)
        program += reg_reg(b"\x85", RCX, RCX, WIDE)  # test rcx, rcx
        enter = self._leave_frame()
        enter += memory(b"\x8b", RCX, RCX, rules.bpf_func_offset, WIDE)  # mov rcx, [rcx + bpf_func]
        enter += b"\x48\x83\xc1" + rules.tail_call_offset.to_bytes()  # add rcx, prologue
        jump = self.jump(RCX)
        load, compare, count = self._count()
        # Three jumps lead to the end: each needs the size of the code that follows it.
        tail = count[1] + enter
        after_test = len(tail) + len(jump.code)
        head = reg_reg(b"\x89", RDX, RDX) + bound
        middle = load + compare
        rest = count[0] + program
        after_compare = len(rest) + 2 + after_test
        after_bound = len(middle) + 2 + after_compare
        code = head + b"\x76" + after_bound.to_bytes()  # jbe out
        code += middle + b"\x73" + after_compare.to_bytes()  # jae out
        code += rest + b"\x74" + after_test.to_bytes()  # je out
        code += tail
        distances = tuple(Distance(len(code) + d.offset, d.target, d.name) for d in jump.distances)
        return EmittedInsn(code + jump.code, distances=distances)

    def tail_call_direct(self, number: int) -> EmittedInsn:
        """A tail call with a known slot: a jump past it, or to the program, patched when the map changes.

        ``number``: index of the poke descriptor, from 1. Raises JitError for an unknown one.
        """
        if not 1 <= number <= len(self._func.pokes):
            raise JitError(f"tail call of poke descriptor {number}, there are {len(self._func.pokes)}")
        poke = self._func.pokes[number - 1]
        load, compare, (before, after) = self._count()
        leave = after + self._leave_frame()
        rest = len(before) + SITE_SIZE + len(leave) + SITE_SIZE
        code = load + compare + b"\x73" + rest.to_bytes() + before  # jae out
        bypass = len(code)
        target = bypass + SITE_SIZE + len(leave)
        if poke.target is None:
            code += b"\xe9" + imm32(len(leave) + SITE_SIZE) + leave + NOP5
            return EmittedInsn(code, poke=PokeOffsets(number - 1, bypass, target))
        code += NOP5 + leave + b"\xe9" + bytes(4)
        where = Distance(target + 1, poke.target, "tail call")
        return EmittedInsn(code, distances=(where,), poke=PokeOffsets(number - 1, bypass, target))

    def _count(self) -> tuple[bytes, bytes, tuple[bytes, bytes]]:
        """The counter's load, its comparison with the limit, and its increment: the parts before and after the check of
        the slot.
        """
        limit = MAX_TAIL_CALL_CNT.to_bytes()
        if self._rules.tail_call_by_pointer:
            return self._load_counter(), b"\x48\x83\x38" + limit, (b"", _ADD_ONE)  # cmp qword ptr [rax], limit
        place = imm32(-self._frame.stack - 4)
        store = b"\x83\xc0\x01" + b"\x89\x85" + place  # add eax, 1; mov [rbp - offset], eax
        return b"\x8b\x85" + place, b"\x83\xf8" + limit, (store, b"")  # mov eax, [rbp - offset]; cmp eax, limit

    def _leave_frame(self) -> bytes:
        """Pop everything that the prologue pushed after the entry point of tail calls."""
        code = restore(self._func, self._frame) + pop(RAX) * self._frame.counter_words
        if self._frame.stack:
            code += reg_reg(b"\x81", RSP, 0, WIDE) + imm32(self._frame.stack)  # add rsp, stack
        return code
