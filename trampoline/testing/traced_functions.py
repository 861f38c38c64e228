"""Traced functions for tests: guest code whose arguments, calls and return value a model can foretell."""

from collections.abc import Sequence
from dataclasses import dataclass

from emu.kernel.text.functions import FunctionText
from trampoline.bpf.btf.c_declaration import parse_model
from trampoline.bpf.btf.func_model import FuncModel
from trampoline.image.generator import ARG_REGISTERS
from trampoline.lab import Lab

MASK = (1 << 64) - 1
_PATCHED = 0x1000
_PARTS = {
    # Register by size in bytes: what a C function may look at of a narrow argument.
    "rdi": {1: "dil", 2: "di", 4: "edi"},
    "rsi": {1: "sil", 2: "si", 4: "esi"},
    "rdx": {1: "dl", 2: "dx", 4: "edx"},
    "rcx": {1: "cl", 2: "cx", 4: "ecx"},
    "r8": {1: "r8b", 2: "r8w", 4: "r8d"},
    "r9": {1: "r9b", 2: "r9w", 4: "r9d"},
}
_FIRST_WORD, _NEXT_WORD, _OTHER_WORDS = 0x9182_7364_5546_3728, 0x1111_1111_1111_1111, 0x0101_0101_0101_0101
_MAY_CHANGE = ("edi", "esi", "edx", "ecx", "r8d", "r9d", "r10d", "r11d")
_WIDTHS = {1: "byte", 2: "word", 4: "dword", 8: "qword"}


@dataclass(frozen=True, slots=True)
class Prototype:
    """A function to be made: its C declaration, and what its body does besides weighing its arguments.

    ``calls``: a function of one argument that it calls with its first; ``sleeps``: another task may run in it;
    ``replaceable``: there is a replacement for it.
    """

    name: str
    declaration: str
    calls: str = ""
    sleeps: bool = False
    replaceable: bool = True

    @property
    def model(self) -> FuncModel:
        """The function model. PrototypeError, KernelError as ``parse_model``."""
        return parse_model(self.declaration)


@dataclass(frozen=True, slots=True)
class TracedFunction:
    """A function in a kernel. *Words* are its arguments as context slots, in declaration order."""

    name: str
    address: int
    model: FuncModel
    calls: str = ""
    sleeps: bool = False

    def result(self, words: Sequence[int]) -> int:
        """What its own code leaves in rax, of which a narrow return value is the low part."""
        return self._sum(words, 0)

    def patched_result(self, words: Sequence[int]) -> int:
        """What its replacement returns."""
        return self._sum(words, _PATCHED)

    def _sum(self, words: Sequence[int], base: int) -> int:
        sizes = word_sizes(self.model)
        cut = [word & (1 << 8 * size) - 1 for word, size in zip(words, sizes, strict=True)]
        total = sum((n + 1) * word for n, word in enumerate(cut))
        return (total + base) & MASK

    def cut(self, value: int) -> int | None:
        """A return value as programs see it; None where the prototype has none."""
        size = self.model.ret_size
        if not size:
            return None
        return int.from_bytes((value & MASK).to_bytes(8, "little")[:size], "little", signed=self.model.ret_signed)

    def arguments(self, words: Sequence[int]) -> tuple[int | bytes, ...]:
        """The C arguments that these words are: numbers with their sign, structs as bytes."""
        args: list[int | bytes] = []
        at = 0
        for arg in self.model.args:
            raw = b"".join((word & MASK).to_bytes(8, "little") for word in words[at : at + arg.slots])[: arg.size]
            args.append(raw if arg.is_struct else int.from_bytes(raw, "little", signed=arg.signed))
            at += arg.slots
        return tuple(args)

    def travel(self, words: Sequence[int]) -> tuple[list[int], list[int]]:
        """The words as a caller passes them: in registers, and on the stack."""
        registers, stack = dict[int, int](), dict[int, int]()
        for word, (place, in_registers) in zip(words, word_places(self.model), strict=True):
            (registers if in_registers else stack)[place] = word
        return [registers[n] for n in sorted(registers)], [stack[n] for n in sorted(stack)]

    def distinct(self, salt: int = 0) -> tuple[int, ...]:
        """Argument words in which each byte differs from that of the next word, and from that of the next salt."""
        words = range(self.model.nr_regs)
        return tuple(_FIRST_WORD + _NEXT_WORD * n + _OTHER_WORDS * salt & MASK for n in words)

    @property
    def has_stack_words(self) -> bool:
        """Whether an argument is on the stack."""
        return not all(there for _, there in word_places(self.model))

    @property
    def skips_registers(self) -> bool:
        """Whether an argument is on the stack while a register is free for it, or for a later one."""
        in_registers = [there for _, there in word_places(self.model)]
        return in_registers[: len(ARG_REGISTERS)] != [True] * min(len(in_registers), len(ARG_REGISTERS))


def word_sizes(model: FuncModel) -> list[int]:
    """Bytes that each word of the arguments has."""
    return [min(8, arg.size - 8 * n) for arg in model.args for n in range(arg.slots)]


def word_places(model: FuncModel) -> list[tuple[int, bool]]:
    """Where each word travels: its number among the registers or on the stack, and whether it is in a register."""
    return [
        (first + n, in_registers)
        for arg, (first, in_registers) in zip(model.args, model.placement(), strict=True)
        for n in range(arg.slots)
    ]


def add_functions(lab: Lab, prototypes: Sequence[Prototype], told: str, *, first: int = 0) -> list[TracedFunction]:
    """Put functions, and a replacement for each that may have one (``NAME_patched``), into a kernel.

    Their code calls the symbol ``told`` first, with rax as their number, from ``first`` on, or as ~number in a
    replacement.
    """
    made = []
    for number, prototype in enumerate(prototypes, start=first):
        body, patched = _bodies(prototype, number, told)
        (placed,) = lab.kernel.add_functions(FunctionText(prototype.name, body, prototype.declaration))
        if prototype.replaceable:
            lab.kernel.add_functions(FunctionText(f"{prototype.name}_patched", patched, traceable=False))
        made.append(TracedFunction(prototype.name, placed.address, prototype.model, prototype.calls, prototype.sleeps))
    return made


def _bodies(prototype: Prototype, number: int, told: str) -> tuple[str, str]:
    model = prototype.model
    if prototype.calls:
        own = ["sub rsp, 8", f"call {prototype.calls} ; traced as well, perhaps", "add rsp, 8", "add rax, 1"]
    elif prototype.sleeps:
        schedule = ["mov rbx, rax", "call schedule ; another task may run here", "mov rax, rbx", "pop rbx"]
        own = ["push rbx", *_weighed(model, 0, pushed=8), *schedule]
    else:
        own = _weighed(model, 0)
    return (
        "\n".join([f"mov eax, {number}", f"call {told}", *own, "ret"]),
        "\n".join([f"mov rax, -{number + 1}", f"call {told}", *_weighed(model, _PATCHED), "ret"]),
    )


def _weighed(model: FuncModel, base: int, pushed: int = 0) -> list[str]:
    """The sum of base and of every word, each times its place from 1."""
    lines = [f"mov eax, {base}"]
    for n, ((place, in_registers), size) in enumerate(zip(word_places(model), word_sizes(model), strict=True)):
        if in_registers:
            register = ARG_REGISTERS[place]
            source = register if size == 8 else _PARTS[register][size]
        else:
            source = f"{_WIDTHS[size]} ptr [rsp + {8 + pushed + 8 * place:#x}]"
        load = {8: f"mov r10, {source}", 4: f"mov r10d, {source}"}.get(size, f"movzx r10d, {source}")
        lines += [load, f"imul r10, r10, {n + 1}", "add rax, r10"]
    # As any C function may.
    return lines + [f"mov {register}, {0x5A5A0000 + n:#x}" for n, register in enumerate(_MAY_CHANGE)]
