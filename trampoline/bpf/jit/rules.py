"""What the JITs of releases and of boots do differently, as data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from trampoline.bpf.boot import Boot
from trampoline.bpf.jit.encode import R8, R10, R13, R14, R15, RAX, RBP, RBX, RCX, RDI, RDX, RSI

_REGISTERS = (RAX, RDI, RSI, RDX, RCX, R8, RBX, R13, R14, R15, RBP)


class ProbeCheck(Enum):
    """How a load that may fault (PROBE_MEM) finds out whether its address is the kernel's."""

    CARRY = "base against a limit, then the carry of base + offset"
    RANGE = "the address, with vsyscall's page as origin, against the span of user addresses"


@dataclass(frozen=True, slots=True)
class JitFlavour:
    """One release's JIT."""

    name: str
    registers: tuple[int, ...]
    """Processor's register of each eBPF register; -1: it has none."""
    endbr: bool
    """endbr64 at the entry and where tail calls arrive (CONFIG_X86_KERNEL_IBT)."""
    sign_extended_imm: bool
    """Constants of 64 bits take ``mov r64, imm32`` where they can (af7c2c7a5b5d, 6.11)."""
    bmi2_shifts: bool
    """Shifts by a register use BMI2 where the processor has it (77d8f5d47bfb, 6.2)."""
    probe: ProbeCheck
    tail_call_by_pointer: bool
    """Functions share one tail call counter by its address (116e04ba1459, 6.12); before, each has a copy."""
    counter_for_all_calls: bool
    """Every call of a function that tail calls reach gives the counter along, not only those of BPF functions."""
    frugal_rcx_shifts: bool = True
    """A shift of rcx itself does not save rcx, and one by rcx needs no copy (8662de232149, 6.2)."""
    locks_xchg: bool = True
    """``xchg`` has a lock prefix, which the processor does not need."""
    sls: bool = True
    """int3 follows a plain ret and a plain indirect jump (CONFIG_MITIGATION_SLS, CONFIG_RETPOLINE)."""
    max_positive_jump8: int = 123
    """Furthest a two-byte jump goes forward; less than 127 so that sizes converge (c8831bdbfbab)."""
    max_entries_offset: int = 0x24
    """Of ``map.max_entries`` in struct bpf_array."""
    ptrs_offset: int = 0x110
    """Of ``ptrs`` in struct bpf_array."""
    bpf_func_offset: int = 0x30
    """Of ``bpf_func`` in struct bpf_prog."""
    stack_args_register: int | None = None
    """eBPF register that arguments on the stack are reached by."""
    arena_faults: bool = False
    """Extable entries of arena accesses say what was accessed."""
    private_stack_guard: int = 8
    """Bytes below and above a private stack (PRIV_STACK_GUARD_SZ)."""

    @property
    def tail_call_offset(self) -> int:
        """Bytes of the prologue that a tail call skips (X86_TAIL_CALL_OFFSET): endbr64, nop5, counter, push, mov."""
        return (4 + 5 if self.endbr else 5) + (3 if self.tail_call_by_pointer else 2) + 4


JIT_FLAVOURS = {
    flavour.name: flavour
    for flavour in (
        JitFlavour(
            "6.1",
            (*_REGISTERS, R10),
            endbr=False,
            sign_extended_imm=False,
            bmi2_shifts=False,
            probe=ProbeCheck.CARRY,
            tail_call_by_pointer=False,
            counter_for_all_calls=True,
            frugal_rcx_shifts=False,
        ),
        JitFlavour(
            "6.12",
            (*_REGISTERS, R10),
            endbr=True,
            sign_extended_imm=True,
            bmi2_shifts=True,
            probe=ProbeCheck.RANGE,
            tail_call_by_pointer=True,
            counter_for_all_calls=False,
            ptrs_offset=0x108,
        ),
        JitFlavour(
            "7.2",
            (*_REGISTERS, -1, R10),
            endbr=True,
            sign_extended_imm=True,
            bmi2_shifts=True,
            probe=ProbeCheck.RANGE,
            tail_call_by_pointer=True,
            counter_for_all_calls=False,
            locks_xchg=False,
            max_entries_offset=0x4C,
            ptrs_offset=0x130,
            bpf_func_offset=0x48,
            stack_args_register=11,
            arena_faults=True,
        ),
    )
}


class IndirectJump(Enum):
    """What stands for ``jmp reg``."""

    PLAIN = "jmp reg"
    LFENCE = "lfence, jmp reg"
    THUNK = "jmp to the register's thunk"


@dataclass(frozen=True, slots=True)
class JitBoot:
    """What the processor and the kernel's command line decide. Addresses are guest addresses."""

    boot: Boot = field(default_factory=Boot)
    """Return thunk and call-depth accounting."""
    bmi2: bool = True
    """The processor has BMI2."""
    indirect_jump: IndirectJump = IndirectJump.PLAIN
    thunks: Mapping[int, int] = field(default_factory=dict)
    """Thunk of each processor register, where indirect jumps go through them."""
    this_cpu_off: int | None = None
    """GS offset of ``this_cpu_off``, as instructions hold it."""
    five_level_paging: bool = False
    """User addresses have 56 bits instead of 47."""
    clear_bhb_loop: int | None = None
    """Called before a classic unprivileged program returns (X86_FEATURE_CLEAR_BHB_LOOP)."""
    clear_bhb_instruction: bool = False
    """Such a program ends with IBHF (X86_FEATURE_CLEAR_BHB_HW, or the loop in a guest)."""

    @property
    def user_limit(self) -> int:
        """TASK_SIZE_MAX + PAGE_SIZE: the first address above user memory's last page."""
        return 1 << (56 if self.five_level_paging else 47)
