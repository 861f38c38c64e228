"""The function model: a prototype as needed by a trampoline (``struct btf_func_model``).

Sizes are bytes. A *slot* is one 8-byte word of the program's context: a struct by value takes as many as its size
needs, so ``nr_regs`` may exceed the number of C arguments (kernel: ``arch_bpf_trampoline``'s ``nr_regs``).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from errno import EINVAL

from trampoline.bpf.errors import ENOTSUPP, KernelError

MAX_BPF_FUNC_ARGS = 12
"""Maximum number of slots, and of arguments (include/linux/bpf.h)."""
MAX_REG_SLOTS = 6
"""Slots passed in rdi, rsi, rdx, rcx, r8 and r9."""
MAX_ARG_SIZE = 16


@dataclass(frozen=True, slots=True)
class FuncArg:
    """One C argument. ``size`` is its size in bytes as passed by value."""

    name: str
    type: str
    size: int
    signed: bool = False
    is_struct: bool = False

    @property
    def slots(self) -> int:
        """Number of context slots that it takes."""
        return (self.size + 7) // 8


def slots_of(sizes: Iterable[int]) -> int:
    """Number of context slots for arguments of these sizes in bytes."""
    return sum([(size + 7) // 8 for size in sizes])


@dataclass(frozen=True, slots=True)
class FuncModel:
    """A prototype as the trampoline generator sees it (``struct btf_func_model``)."""

    name: str
    args: tuple[FuncArg, ...] = ()
    ret_size: int = 4
    ret_signed: bool = True

    def returned(self, rax: int) -> int | None:
        """The C value in ``rax`` after the return; None for void."""
        raw = (rax & (1 << 64) - 1).to_bytes(8, "little")[: self.ret_size]
        return int.from_bytes(raw, "little", signed=self.ret_signed) if self.ret_size else None

    @property
    def nr_regs(self) -> int:
        """Number of context slots of all arguments: the result of ``bpf_get_func_arg_cnt``."""
        return sum(arg.slots for arg in self.args)

    @property
    def arg_sizes(self) -> tuple[int, ...]:
        """Size of each argument in bytes; it decides between registers and stack."""
        return tuple(arg.size for arg in self.args)

    @property
    def returns_void(self) -> bool:
        """True if the function returns void."""
        return self.ret_size == 0

    def placement(self) -> list[tuple[int, bool]]:
        """For each argument: the index of its first slot *among those of its own kind*, and True if the kind is
        registers.

        A struct larger than the remaining registers goes to the stack as a whole, while smaller arguments after it may
        still take registers (System V ABI; ``save_args()`` in arch/x86/net/bpf_jit_comp.c).
        """
        placed: list[tuple[int, bool]] = []
        regs = stack = 0
        for arg in self.args:
            if regs + arg.slots <= MAX_REG_SLOTS:
                placed.append((regs, True))
                regs += arg.slots
            else:
                placed.append((stack, False))
                stack += arg.slots
        return placed

    @property
    def nr_stack_slots(self) -> int:
        """Number of 8-byte words that the caller passes on the stack."""
        return sum(arg.slots for arg, (_, in_regs) in zip(self.args, self.placement(), strict=True) if not in_regs)

    def check(self) -> None:
        """Reject what ``btf_distill_func_proto`` and the generator reject: KernelError with -EINVAL or -ENOTSUPP."""
        if len(self.args) > MAX_BPF_FUNC_ARGS:
            raise KernelError(
                EINVAL, f"{self.name} has {len(self.args)} arguments; at most {MAX_BPF_FUNC_ARGS} can be traced"
            )
        for arg in self.args:
            if not 0 < arg.size <= MAX_ARG_SIZE:
                raise KernelError(
                    EINVAL, f"argument {arg.name!r} of {self.name} has {arg.size} bytes; at most {MAX_ARG_SIZE}"
                )
        if self.nr_regs > MAX_BPF_FUNC_ARGS:
            raise KernelError(ENOTSUPP, f"{self.name} needs {self.nr_regs} argument slots; at most {MAX_BPF_FUNC_ARGS}")

    @classmethod
    def of_slots(cls, name: str, count: int) -> "FuncModel":
        """A function with ``count`` u64 arguments, for benches and tests."""
        return cls(name, tuple(FuncArg(f"a{i}", "u64", 8) for i in range(count)))

    def __str__(self) -> str:
        args = ", ".join(f"{a.type} {a.name}".rstrip() for a in self.args) or "void"
        return f"{self.name}({args})"
