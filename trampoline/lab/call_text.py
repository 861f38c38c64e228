"""Calls as a user writes them: ``bpf_fentry_test2(2, 3)``, ``f("name", &5, {2, 3})``."""

import re
from dataclasses import dataclass

from emu.kernel.kernel import Kernel
from trampoline.bpf.btf.func_model import FuncModel
from trampoline.bpf.errors import TrampolineError

_CALL = re.compile(r"\s*([A-Za-z_][\w.]*(?::[A-Za-z_][\w.]*)?)\s*\((.*)\)\s*", re.DOTALL)
_ARGUMENT = re.compile(
    r"""\s*(?:
        (?P<text> "(?:[^"\\]|\\.)*" )
      | (?P<struct> \{[^{}]*\} )
      | (?P<pointed> &\s*[-+]?\w+ )
      | (?P<number> [-+]?\w+ )
    )\s*(?:,|$)""",
    re.VERBOSE,
)
_MASK = (1 << 64) - 1
_BYTES = 64
"""Size of the buffer of a ``&number`` argument, in bytes: the number, then zeros."""


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument: its 8-byte words, or the bytes that it points to."""

    words: tuple[int, ...]
    pointed: bytes | None = None


@dataclass(frozen=True, slots=True)
class CallText:
    """A call: a function's name, and its arguments in order."""

    function: str
    args: tuple[Argument, ...]
    text: str

    @classmethod
    def parse(cls, text: str) -> "CallText":
        """Parses a call. Arguments are numbers (``-5``, ``0x10``), ``"text"`` (a pointer to it), ``&5`` (a pointer to a
        number followed by zeros), and ``{2, 3}`` (the words of a struct by value). TrampolineError names the wrong
        argument.
        """
        match = _CALL.fullmatch(text)
        if match is None:
            raise TrampolineError(f"{text!r} is not a call such as f(1, 2)")
        function, rest = match.groups()
        args: list[Argument] = []
        place = 0
        while rest[place:].strip():
            found = _ARGUMENT.match(rest, place)
            if found is None:
                forms = "a number, \"text\", &number or {words}"
                raise TrampolineError(f"{text!r}: argument {len(args) + 1} is not {forms}")
            args.append(_argument(found.lastgroup or "", found[found.lastgroup or 0], text))
            place = found.end()
        return cls(function, tuple(args), text)

    def place(self, model: FuncModel, kernel: Kernel) -> "PlacedCall":
        """Places a call: its register and stack words, with pointed-to bytes in guest memory.

        TrampolineError if the function takes other arguments; KernelError -ENOMEM.
        """
        slots = [arg.slots for arg in model.args]
        if len(self.args) != len(slots):
            raise TrampolineError(f"{self.text}: {model} takes {len(slots)} arguments, not {len(self.args)}")
        for number, (arg, wanted) in enumerate(zip(self.args, slots, strict=True), 1):
            if len(arg.words) != wanted:
                raise TrampolineError(
                    f"{self.text}: argument {number} of {model} has {wanted} words, not {len(arg.words)}"
                )
        registers, stack = dict[int, int](), dict[int, int]()
        memory: list[tuple[int, bytes]] = []
        for arg, (first, in_registers) in zip(self.args, model.placement(), strict=True):
            words = arg.words
            if arg.pointed is not None:
                address = kernel.slab.alloc(len(arg.pointed), f"argument of {self.text}", arg.pointed)
                memory.append((address, arg.pointed))
                words = (address,)
            where = registers if in_registers else stack
            where.update({first + n: word for n, word in enumerate(words)})
        return PlacedCall(
            tuple(registers[n] for n in sorted(registers)), tuple(stack[n] for n in sorted(stack)), tuple(memory)
        )


@dataclass(frozen=True, slots=True)
class PlacedCall:
    """Words of a call, and the guest memory that they point to: address and initial content."""

    registers: tuple[int, ...]
    stack: tuple[int, ...]
    memory: tuple[tuple[int, bytes], ...]

    def free(self, kernel: Kernel) -> None:
        """Frees the memory."""
        for address, _ in self.memory:
            kernel.slab.free(address)


def _argument(kind: str, text: str, whole: str) -> Argument:
    if kind == "text":
        return Argument((0,), bytes(text[1:-1], "utf-8").decode("unicode_escape").encode("utf-8") + b"\0")
    if kind == "struct":
        return Argument(tuple(_number(word, whole) for word in text[1:-1].split(",")))
    if kind == "pointed":
        return Argument((0,), _number(text[1:], whole).to_bytes(8, "little").ljust(_BYTES, b"\0"))
    return Argument((_number(text, whole),))


def _number(text: str, whole: str) -> int:
    try:
        value = int(text.strip().replace(" ", ""), 0)
    except ValueError:
        raise TrampolineError(f"{whole!r}: {text.strip()!r} is not a number") from None
    if not -(1 << 63) <= value <= _MASK:
        raise TrampolineError(f"{whole!r}: {text.strip()} has more than 64 bits")
    return value & _MASK
