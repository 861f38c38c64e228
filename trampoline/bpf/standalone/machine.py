"""A machine for standalone programs: compiles, places and calls them, and explains their faults.

Invalid memory accesses, which verification would reject, are detected at run time: ``ProgramFault``.
"""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from emu.errors import GuestFault, GuestTimeout
from emu.machine.address_map import AddressMap, round_up
from emu.machine.machine import Machine, Prot
from emu.machine.vcpu import Vcpu
from trampoline.bpf.errors import BytecodeError, TrampolineError
from trampoline.bpf.isa.insn import (
    ADDR_SPACE_CAST,
    CALL,
    GOTOX,
    LD_IMM64,
    MAX_REG,
    MAY_GOTO,
    Alu,
    CallKind,
    Cls,
    Imm64,
    Insn,
    X,
)
from trampoline.bpf.isa.rules import IsaRules
from trampoline.bpf.isa.text import format_insn
from trampoline.bpf.jit.bpf_int_jit_compile import compile_func
from trampoline.bpf.jit.jit_image import JitImage
from trampoline.bpf.jit.jit_input import JitFunc
from trampoline.bpf.jit.rules import JitBoot, JitRules
from trampoline.bpf.rewrite.division import safe_division
from trampoline.bpf.rewrite.rules import RewriteRules
from trampoline.bpf.standalone.expand import expand
from trampoline.bpf.standalone.functions import FunctionCode, functions_of
from trampoline.bpf.standalone.zext import zero_extended

STACK_SIZE = 512
"""Bytes of stack of every function (MAX_BPF_STACK)."""
CODE_SIZE = 4 << 20
MEMORY_SIZE = 1 << 20
MAX_INSTRUCTIONS = 10_000_000
"""Default limit on the machine instructions of a run."""
_ALIGN = 16

Helper = Callable[[int, int, int, int, int], int]


class ProgramFault(TrampolineError):
    """A fault of a program that verification would have rejected.

    ``slot``: its instruction, None if unknown; ``fault``: the machine's error.
    """

    def __init__(self, reason: str, slot: int | None, fault: GuestFault) -> None:
        super().__init__(reason if slot is None else f"slot {slot}: {reason}")
        self.slot, self.fault = slot, fault


@dataclass(frozen=True, slots=True)
class _Placed:
    """A function in guest memory. ``slots``: the program's slot of each instruction of the image."""

    image: JitImage
    slots: tuple[int, ...]


class BareRules(Protocol):
    """The rules of a kernel release that bare programs need: a ``KernelRelease`` has them."""

    @property
    def name(self) -> str:
        """The release's name."""
        ...

    @property
    def isa(self) -> IsaRules:
        """The release's instructions."""
        ...

    @property
    def jit(self) -> JitRules:
        """Rules of the JIT."""
        ...

    @property
    def rewrite(self) -> RewriteRules:
        """Rules of the rewriting, for its reserved register."""
        ...


class BareMachine:
    """A machine for standalone programs, one at a time: loading replaces the previous program.

    ``release`` is the kernel whose JIT compiles; ``bmi2``: the processor has BMI2. ``helpers``: the functions that
    programs may call, by helper number.
    """

    def __init__(
        self, release: BareRules, *, bmi2: bool = True, helpers: Mapping[int, Helper] | None = None
    ) -> None:
        self.release, self.boot = release, JitBoot(bmi2=bmi2)
        layout = AddressMap()
        self.machine = Machine(layout, ram_bytes=8 << 20, counting="off")
        self.machine.map(layout.modules, CODE_SIZE, Prot.READ | Prot.EXEC, name="programs")
        self.machine.map(layout.direct_map, MEMORY_SIZE, Prot.READ | Prot.WRITE, name="memory of programs")
        self._call_base, self._code = layout.text, layout.modules
        self._memory_end = layout.direct_map + MEMORY_SIZE
        self._helpers = {
            number: self.machine.host_call(f"helper {number}", partial(_call_helper, function))
            for number, function in (helpers or {}).items()
        }
        self._placed: list[_Placed] = []

    def load(self, insns: Sequence[Insn], stack: Mapping[int, int] | None = None) -> None:
        """Compile a program and place it in guest memory.

        ``stack``: bytes of stack of functions by their start slots; others have 512.

        Raises BytecodeError and JitError for programs that cannot be compiled: instructions that this release lacks or
        that need a kernel (maps, kernel functions), jumps and calls without a target.
        """
        functions_of(insns)
        slot = 0
        for insn in insns:
            self._check(insn, slot)
            slot += insn.slots
        expanded = expand(insns, self._patch)
        origin = {new: old for old, new in expanded.slots.items()}
        depths = {expanded.slots[slot]: depth for slot, depth in (stack or {}).items()}
        functions = functions_of(expanded.insns)
        # Addresses of callees do not change sizes.
        start = self._code
        starts = {function.start: start for function in functions}
        images = [self._compile(function, depths, starts) for function in functions]
        for function, image in zip(functions, images, strict=True):
            starts[function.start] = start
            start += (len(image) + _ALIGN - 1) // _ALIGN * _ALIGN
        if start > self._code + CODE_SIZE:
            raise BytecodeError(f"the program has {start - self._code} bytes of code, too many")
        if len(functions) > 1:
            images = [self._compile(function, depths, starts) for function in functions]
        placed = []
        code = bytearray()
        for function, image in zip(functions, images, strict=True):
            placed.append(_Placed(image, _origins(function, origin)))
            code += image.code + b"\xcc" * (-len(image) % _ALIGN)
        self._placed = placed
        self.machine.load(self._code, bytes(code))

    def run(self, memory: bytes = b"", *, max_instructions: int = MAX_INSTRUCTIONS) -> tuple[int, bytes]:
        """Call the program with the guest address and the length of a copy of ``memory``, both 0 for none.

        Returns r0 and the memory afterwards. Raises ProgramFault if the program faults or does not end; TrampolineError
        for memory of more than 1 MiB.
        """
        if len(memory) > MEMORY_SIZE:
            raise TrampolineError(f"{len(memory)} bytes of memory, {MEMORY_SIZE} at most")
        address = self._memory_end - round_up(len(memory), 8) if memory else 0
        if memory:
            self.machine.write(address, memory)
        try:
            call = self.machine.vcpus[0].call(
                self._placed[0].image.address, address, len(memory), max_instructions=max_instructions
            )
        except GuestFault as fault:
            raise self._program_fault(fault, max_instructions) from fault
        return call.value, self.machine.read(address, len(memory)) if memory else b""

    def close(self) -> None:
        """Release the machine."""
        self.machine.close()

    def _check(self, insn: Insn, slot: int) -> None:
        """Reject instructions that only a kernel can execute, and those that this release lacks: BytecodeError."""
        reason = _needs_kernel(insn)
        if reason is None and insn.code == CALL and insn.src == CallKind.HELPER and insn.imm not in self._helpers:
            reason = f"no helper {insn.imm}"
        if reason is None and not self.release.isa.has(insn):
            reason = f"{self.release.name} has no {format_insn(insn)}"
        if reason:
            raise BytecodeError(reason, slot)

    def _patch(self, insn: Insn) -> Sequence[Insn] | None:
        if insn.cls not in (Cls.ALU, Cls.ALU64):
            return zero_extended(insn)
        if not insn.from_register and (constant := _by_constant(insn)) is not None:
            return constant
        return safe_division(insn, self.release.rewrite.ax) if insn.op in (Alu.DIV, Alu.MOD) else None

    def _compile(self, function: FunctionCode, depths: Mapping[int, int], starts: Mapping[int, int]) -> JitImage:
        insns = []
        slot = function.start
        for insn in function.insns:
            if insn.code == CALL:
                target = starts[slot + 1 + insn.imm] if insn.src == CallKind.SUBPROG else self._helpers[insn.imm]
                insn = replace(insn, imm=target - self._call_base)
            insns.append(insn)
            slot += insn.slots
        func = JitFunc(
            tuple(insns),
            call_base=self._call_base,
            index=sorted(starts).index(function.start),
            stack_depth=depths.get(function.start, STACK_SIZE),
        )
        return compile_func(func, starts[function.start], self.release.jit, self.boot)

    def _program_fault(self, fault: GuestFault, limit: int) -> ProgramFault:
        slot = self._slot_at(fault.rip)
        if isinstance(fault, GuestTimeout):
            return ProgramFault(f"still running after {limit} machine instructions", slot, fault)
        if fault.address is not None:
            access = {"read": "reading", "write": "writing", "fetch": "executing"}.get(fault.access or "", "at")
            return ProgramFault(f"{fault.kind} {access} {fault.address:#x}", slot, fault)
        return ProgramFault(fault.headline, slot, fault)

    def _slot_at(self, rip: int) -> int | None:
        for placed in self._placed:
            image = placed.image
            if image.address <= rip < image.address + len(image):
                index = bisect_right(image.offsets, rip - image.address) - 1
                return placed.slots[index] if 0 <= index < len(placed.slots) else None
        return None


def _needs_kernel(insn: Insn) -> str | None:
    """The reason why an instruction has no meaning without a kernel; None if it has one."""
    if insn.code == CALL:
        return "a kernel function needs a kernel" if insn.src == CallKind.KFUNC else None
    if insn.code == LD_IMM64:
        return None if insn.src == Imm64.VALUE else "the address of a map or function needs a kernel"
    if insn.cls == Cls.LD or insn.code in (MAY_GOTO, GOTOX):
        return f"opcode 0x{insn.code:02x} needs a kernel, which rewrites it"
    if insn.code == Cls.ALU64 | Alu.MOV | X and insn.off == ADDR_SPACE_CAST:
        return "a cast between address spaces needs an arena"
    return None if max(insn.dst, insn.src) <= MAX_REG else "an argument on the stack needs a kernel"


def _origins(function: FunctionCode, origin: Mapping[int, int]) -> tuple[int, ...]:
    """Slot in the loaded program of each slot of a function."""
    found = []
    latest = origin[function.start]
    for slot in range(function.start, function.end):
        latest = origin.get(slot, latest)
        found.append(latest)
    return tuple(found)


def _by_constant(insn: Insn) -> tuple[Insn, ...] | None:
    """Replacements for division by a constant zero and shifts by more than the width: valid in RFC 9669, not in the
    verifier.
    """
    bits = 64 if insn.cls == Cls.ALU64 else 32
    if insn.op in (Alu.LSH, Alu.RSH, Alu.ARSH) and not 0 <= insn.imm < bits:
        return (replace(insn, imm=insn.imm & bits - 1),)
    if insn.op == Alu.DIV and not insn.imm:
        return (Insn(Cls.ALU64 | Alu.MOV, insn.dst),)
    if insn.op == Alu.MOD and not insn.imm:
        return (Insn(insn.cls | Alu.MOV | X, insn.dst, insn.dst),)
    return None


def _call_helper(function: Helper, vcpu: Vcpu) -> int:
    first, second, third, fourth, fifth = vcpu.args(5)
    return function(first, second, third, fourth, fifth) & (1 << 64) - 1
