"""Rules of a kernel release, and of a boot, for the JIT."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from trampoline.bpf.boot import Boot
from trampoline.bpf.jit.encode import R8, R13, R14, R15, RAX, RBP, RBX, RCX, RDI, RDX, RSI

REGISTERS = (RAX, RDI, RSI, RDX, RCX, R8, RBX, R13, R14, R15, RBP)
"""Processor registers of r0 to r10."""


class ProbeCheck(Enum):
    """Method by which a load that may fault (PROBE_MEM) detects a non-kernel address."""

    CARRY = "base against a limit, then the carry of base + offset"
    RANGE = "the address, with vsyscall's page as origin, against the span of user addresses"


class ArenaFaults(Enum):
    """Contents of an extable entry for an access to an arena."""

    REGISTER = "the register that a load clears"
    ACCESS = "that, and the base register and the offset; every instruction of a store class clears none"
    DIRECTION = "that, and whether it stores; atomic operations with a result clear its register"


@dataclass(frozen=True, slots=True)
class JitRules:
    """One release's JIT. ``KernelRelease`` sets the fields whose docstring says "from the release"."""

    registers: tuple[int, ...]
    """Processor register of each eBPF register; -1: none."""
    bmi2_shifts: bool
    """Shifts by a register use BMI2 if the processor has it (77d8f5d47bfb, 6.2)."""
    probe: ProbeCheck
    tail_call_by_pointer: bool
    """Functions share one tail call counter through its address (116e04ba1459, 6.12); before, each has a copy."""
    counter_for_all_calls: bool
    """Every call from a function that tail calls can reach passes the counter on, not only calls of BPF functions."""
    frugal_rcx_shifts: bool = True
    """A shift of rcx itself does not save rcx, and one by rcx needs no copy (8662de232149, 6.2)."""
    locks_xchg: bool = True
    """``xchg`` has a redundant lock prefix."""
    max_positive_jump8: int = 123
    """Maximum forward distance of a two-byte jump; less than 127 so that sizes converge (c8831bdbfbab)."""
    stack_args_register: int | None = None
    """eBPF register that addresses stack arguments."""
    arena_faults: ArenaFaults = ArenaFaults.REGISTER
    """Contents of extable entries of arena accesses."""
    private_stack_guard: int = 8
    """Guard bytes below and above a private stack (PRIV_STACK_GUARD_SZ)."""
    endbr: bool = True
    """endbr64 at the entry and at the entry point of tail calls (CONFIG_X86_KERNEL_IBT). From the release."""
    sign_extended_imm: bool = True
    """64-bit constants use ``mov r64, imm32`` if possible (af7c2c7a5b5d, 6.11). From the release."""
    sls: bool = True
    """int3 follows a plain ret or indirect jump (CONFIG_MITIGATION_SLS, CONFIG_RETPOLINE). From the release."""
    max_entries_offset: int = 0x24
    """Offset of ``map.max_entries`` in struct bpf_array. From the release."""
    ptrs_offset: int = 0x110
    """Offset of ``ptrs`` in struct bpf_array. From the release."""
    bpf_func_offset: int = 0x30
    """Offset of ``bpf_func`` in struct bpf_prog. From the release."""

    @property
    def tail_call_offset(self) -> int:
        """Bytes of the prologue that a tail call skips (X86_TAIL_CALL_OFFSET): endbr64, nop5, counter, push, mov."""
        return (4 + 5 if self.endbr else 5) + (3 if self.tail_call_by_pointer else 2) + 4


class IndirectJump(Enum):
    """Form of ``jmp reg``."""

    PLAIN = "jmp reg"
    LFENCE = "lfence, jmp reg"
    THUNK = "jmp to the register's thunk"


@dataclass(frozen=True, slots=True)
class JitBoot:
    """JIT settings from the processor and the kernel's command line. Addresses are guest addresses."""

    boot: Boot = field(default_factory=Boot)
    """Return thunk and call-depth accounting."""
    bmi2: bool = True
    """The processor has BMI2."""
    indirect_jump: IndirectJump = IndirectJump.PLAIN
    thunks: Mapping[int, int] = field(default_factory=dict)
    """Thunk of each processor register, if indirect jumps use thunks."""
    this_cpu_off: int | None = None
    """GS offset of ``this_cpu_off``, as encoded in instructions."""
    five_level_paging: bool = False
    """User addresses have 56 bits instead of 47."""
    clear_bhb_loop: int | None = None
    """Function called before a classic unprivileged program returns (X86_FEATURE_CLEAR_BHB_LOOP)."""
    clear_bhb_instruction: bool = False
    """Such a program ends with IBHF (X86_FEATURE_CLEAR_BHB_HW, or the loop in a guest)."""

    @property
    def user_limit(self) -> int:
        """TASK_SIZE_MAX + PAGE_SIZE: the first address above user memory's last page."""
        return 1 << (56 if self.five_level_paging else 47)
