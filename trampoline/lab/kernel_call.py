"""Calls of a real kernel's functions as a user writes them: ``f(1, "name", current, zero:64)``."""

from dataclasses import dataclass

from trampoline.lab.call_text import NUMBER, POINTED, TEXT, number, pointed_bytes, read_call

_WORD = r"(?P<word> current | zero:\d+ )"
_FORMS = 'a number, "text", &number (a pointer to it), current (the task) or zero:N (N zeroed bytes)'


@dataclass(frozen=True, slots=True)
class KernelCall:
    """A call: the function's name, and arguments as ``OwnKernel.call`` takes them."""

    function: str
    arguments: tuple[int | str | bytes, ...]
    text: str

    @classmethod
    def parse(cls, text: str) -> "KernelCall":
        """Read a call. TrampolineError with the place."""
        function, arguments = read_call(text, (TEXT, _WORD, POINTED, NUMBER), _FORMS)
        return cls(function, tuple(_argument(kind, argument, text) for kind, argument in arguments), text)


def _argument(kind: str, text: str, whole: str) -> int | str | bytes:
    if kind == "word":
        return text.strip()
    return number(text, whole) if kind == "number" else pointed_bytes(kind, text, whole)
