"""Calls of a real kernel's functions as a user writes them: ``f(1, "name", current, zero:64)``."""

import re
from dataclasses import dataclass

from trampoline.bpf.errors import TrampolineError

_CALL = re.compile(r"\s*([A-Za-z_][\w.]*)\s*\((.*)\)\s*", re.DOTALL)
_ARGUMENT = re.compile(
    r"""\s*(?:
        (?P<text> "(?:[^"\\]|\\.)*" )
      | (?P<word> current | zero:\d+ )
      | (?P<pointed> &\s*[-+]?\w+ )
      | (?P<number> [-+]?\w+ )
    )\s*(?:,|$)""",
    re.VERBOSE,
)
_MASK = (1 << 64) - 1
_POINTED = 64
"""Bytes at a number's pointer: the number, then zeros."""
ARGUMENTS = 'arguments are numbers, "text", &number (a pointer to it), current (the task), zero:N (N zeroed bytes)'


@dataclass(frozen=True, slots=True)
class KernelCall:
    """A call: the function's name, and arguments as ``OwnKernel.call`` takes them."""

    function: str
    arguments: tuple[int | str | bytes, ...]
    text: str

    @classmethod
    def parse(cls, text: str) -> "KernelCall":
        """Read a call. TrampolineError with the place."""
        match = _CALL.fullmatch(text)
        if match is None:
            raise TrampolineError(f"{text!r} is not a call such as f(1, 2)")
        function, rest = match.groups()
        arguments: list[int | str | bytes] = []
        place = 0
        while rest[place:].strip():
            found = _ARGUMENT.match(rest, place)
            if found is None:
                raise TrampolineError(f"{text!r}: argument {len(arguments) + 1} can't be read: {ARGUMENTS}")
            kind = found.lastgroup or ""
            arguments.append(_argument(kind, found[kind], text))
            place = found.end()
        return cls(function, tuple(arguments), text)


def _argument(kind: str, text: str, whole: str) -> int | str | bytes:
    if kind == "text":
        return bytes(text[1:-1], "utf-8").decode("unicode_escape").encode("utf-8") + b"\0"
    if kind == "word":
        return text
    if kind == "pointed":
        return _number(text[1:], whole).to_bytes(8, "little").ljust(_POINTED, b"\0")
    return _number(text, whole)


def _number(text: str, whole: str) -> int:
    try:
        value = int(text.strip(), 0)
    except ValueError:
        raise TrampolineError(f"{whole!r}: {text.strip()!r} is no number") from None
    if not -(1 << 63) <= value <= _MASK:
        raise TrampolineError(f"{whole!r}: {text.strip()} has more than 64 bits")
    return value & _MASK
