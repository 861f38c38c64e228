"""Tokens of eBPF text, with their columns."""

import re
from typing import NamedTuple

from trampoline.bpf.errors import BytecodeSyntaxError

# A position and an opcode before an instruction, as in the kernel's log and in disassemblers: "12: (b7) ".
_PREFIX = re.compile(r"\s*\d+:\s*(\([0-9a-f]{2}\)\s*)?")
_COMMENT = re.compile(r";|//|(?<!\S)#")
_TOKEN = re.compile(
    r"""\s*(?:
        (?P<sign> s>>= | s[/%]= | s[<>]=? | >>= | <<= | [-+*/%|&^=!<>]= | [-+*&=<>()\[\],:\#] )
      | (?P<number> 0[xX][0-9a-fA-F]+\b | [0-9]+\b )
      | (?P<name> [A-Za-z_.$][\w.$]* )
    )""",
    re.VERBOSE | re.ASCII,
)
_REGISTER = re.compile(r"([rw])([0-9]|1[0-2])", re.ASCII)


class Token(NamedTuple):
    """A word; ``column`` counts from 1. ``kind`` is sign, number, name, or end."""

    kind: str
    text: str
    column: int


class BpfRegister(NamedTuple):
    """A named register: ``wide`` for r (64 bits), otherwise w."""

    number: int
    wide: bool


class TokenLine:
    """The tokens of one line, read from left to right. Anything unexpected raises BytecodeSyntaxError."""

    def __init__(self, text: str, number: int) -> None:
        self.number = number
        comment = _COMMENT.search(text)
        end = len(text[: comment.start()].rstrip()) if comment else len(text.rstrip())
        prefix = _PREFIX.match(text, 0, end)
        place = prefix.end() if prefix else 0
        self._tokens: list[Token] = []
        while place < end:
            match = _TOKEN.match(text, place, end)
            if not match:
                place += len(text[place:]) - len(text[place:].lstrip())
                raise BytecodeSyntaxError(number, place + 1, "an instruction's word", repr(text[place]))
            kind = match.lastgroup or ""
            self._tokens.append(Token(kind, match[kind], match.start(kind) + 1))
            place = match.end()
        self._tokens.append(Token("end", "the end of the line", end + 1))
        self._place = 0

    @property
    def next(self) -> Token:
        """The next token, not consumed."""
        return self._tokens[self._place]

    def fail(self, expected: str, token: Token | None = None) -> BytecodeSyntaxError:
        """The error for an expectation that a token (by default the next) does not meet."""
        token = token or self.next
        found = token.text if token.kind == "end" else repr(token.text)
        return BytecodeSyntaxError(self.number, token.column, expected, found)

    def any(self) -> Token:
        """Read the next token."""
        token = self.next
        self._place = min(self._place + 1, len(self._tokens) - 1)
        return token

    def at(self, *texts: str) -> bool:
        """True if these words follow."""
        ahead = self._tokens[self._place : self._place + len(texts)]
        return [token.text for token in ahead if token.kind != "end"] == list(texts)

    def take(self, *texts: str) -> bool:
        """Read these words if they follow; True if read."""
        found = self.at(*texts)
        if found:
            self._place += len(texts)
        return found

    def want(self, *texts: str) -> None:
        """Read these words."""
        for text in texts:
            if not self.take(text):
                raise self.fail(repr(text))

    def end(self) -> None:
        """Require the end of the line."""
        if self.next.kind != "end":
            raise self.fail("the end of the line")

    def name(self, expected: str) -> Token:
        """Read a name."""
        if self.next.kind != "name":
            raise self.fail(expected)
        return self.any()

    def integer(self, low: int, high: int, expected: str) -> int:
        """Read a number with or without a sign, from ``low`` to ``high`` inclusive."""
        first = self.next
        negative = self.take("-")
        if not negative:
            self.take("+")
        if self.next.kind != "number":
            raise self.fail(expected)
        digits = self.any().text
        if len(digits) > 40:  # longer than any field needs, and near the limit of int()
            raise self.fail(f"{expected} from {low} to {high}", first)
        value = int(digits, 16 if digits[:2] in ("0x", "0X") else 10)
        value = -value if negative else value
        if not low <= value <= high:
            raise self.fail(f"{expected} from {low} to {high}", first._replace(text=str(value)))
        return value

    def imm(self) -> int:
        """Read an immediate of 32 bits, signed or unsigned."""
        value = self.integer(-(1 << 31), (1 << 32) - 1, "an immediate")
        return value - (1 << 32) if value >> 31 == 1 else value

    def operand(self) -> int:
        """Read an immediate where a register is allowed too."""
        if self.next.kind != "number" and self.next.text not in ("-", "+"):
            raise self.fail("a register or an immediate")
        return self.imm()

    def at_register(self) -> bool:
        """True if a register follows."""
        return self.next.kind == "name" and bool(_REGISTER.fullmatch(self.next.text))

    def register(self, *, wide: bool | None = None, same: int | None = None) -> BpfRegister:
        """Read a register, of this width if given, and with the number ``same`` if given."""
        match = _REGISTER.fullmatch(self.next.text) if self.next.kind == "name" else None
        register = BpfRegister(int(match[2]), match[1] == "r") if match else None
        letter = {True: "r", False: "w", None: "r or w"}[wide]
        expected = f"{letter}{same}" if same is not None else f"a register ({letter})"
        if register is None or wide not in (None, register.wide) or same not in (None, register.number):
            raise self.fail(expected)
        self.any()
        return register
