"""Calls as a user writes them: ``bpf_fentry_test2(2, 3)``, ``f("name", &5, {2, 3})``."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from emu.kernel.kernel import Kernel
from trampoline.bpf.btf.func_model import FuncModel
from trampoline.bpf.errors import TrampolineError

_CALL = re.compile(r"\s*([A-Za-z_][\w.]*(?::[A-Za-z_][\w.]*)?)\s*\((.*)\)\s*", re.DOTALL)
TEXT, POINTED, NUMBER = r'(?P<text> "(?:[^"\\]|\\.)*" )', r"(?P<pointed> &\s*[-+]?\w+ )", r"(?P<number> [-+]?\w+ )"
"""Forms of arguments, as verbose regular expressions, one group each."""
_STRUCT = r"(?P<struct> \{[^{}]*\} )"
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
        function, arguments = read_call(text, (TEXT, _STRUCT, POINTED, NUMBER), 'a number, "text", &number or {words}')
        return cls(function, tuple(_argument(kind, argument, text) for kind, argument in arguments), text)

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


def read_call(text: str, forms: Sequence[str], described: str) -> tuple[str, list[tuple[str, str]]]:
    """The function's name, and each argument with the name of the form that it has.

    ``forms``: expressions such as ``TEXT``; ``described``: the same in words. TrampolineError names the wrong argument.
    """
    match = _CALL.fullmatch(text)
    if match is None:
        raise TrampolineError(f"{text!r} is not a call such as f(1, 2)")
    function, rest = match.groups()
    argument = _form(tuple(forms))
    found: list[tuple[str, str]] = []
    place = 0
    while rest[place:].strip():
        one = argument.match(rest, place)
        if one is None:
            raise TrampolineError(f"{text!r}: argument {len(found) + 1} is not {described}")
        found.append((one.lastgroup or "", one[one.lastgroup or 0]))
        place = one.end()
    return function, found


@cache
def _form(forms: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile(rf"\s*(?: {' | '.join(forms)} )\s*(?:,|$)", re.VERBOSE)


def pointed_bytes(kind: str, text: str, whole: str) -> bytes:
    """The bytes that a ``TEXT`` or ``POINTED`` argument points to. TrampolineError."""
    if kind == "pointed":
        return number(text[1:], whole).to_bytes(8, "little").ljust(_BYTES, b"\0")
    try:
        return bytes(text[1:-1], "utf-8").decode("unicode_escape").encode("utf-8") + b"\0"
    except UnicodeError:
        raise TrampolineError(f"{whole!r}: {text} has a wrong escape or character") from None


def number(text: str, whole: str) -> int:
    """A number of at most 64 bits, negative ones as their two's complement. TrampolineError."""
    try:
        value = int(text.strip().replace(" ", ""), 0)
    except ValueError:
        raise TrampolineError(f"{whole!r}: {text.strip()!r} is not a number") from None
    if not -(1 << 63) <= value <= _MASK:
        raise TrampolineError(f"{whole!r}: {text.strip()} has more than 64 bits")
    return value & _MASK


def _argument(kind: str, text: str, whole: str) -> Argument:
    if kind in ("text", "pointed"):
        return Argument((0,), pointed_bytes(kind, text, whole))
    if kind == "struct":
        return Argument(tuple(number(word, whole) for word in text[1:-1].split(",")))
    return Argument((number(text, whole),))
