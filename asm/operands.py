"""Parser of operands: registers, numbers and memory."""

from __future__ import annotations

import re
from dataclasses import dataclass

from asm.registers import OPERANDS, REGISTERS_32, REGISTERS_64, RESERVED, SEGMENTS

LOWEST, HIGHEST = -(1 << 63), (1 << 64) - 1
SIZES = {
    **{"byte": 1, "word": 2, "dword": 4, "fword": 6, "qword": 8, "xword": 10, "tbyte": 10},
    **{"oword": 16, "xmmword": 16, "ymmword": 32},
}
_ADDRESS_REGISTERS = frozenset((*REGISTERS_64, *REGISTERS_32, "rip"))
_TOKEN = re.compile(r"\s*(?:(\d\w*)|([A-Za-z_.$@?][\w.$@?]*)|([][+*,:-]))", re.ASCII)
_NUMBER = re.compile(r"0x[0-9a-f]+|0b[01]+|0|[1-9][0-9]*", re.ASCII | re.IGNORECASE)


class Refusal(Exception):
    """Refusal of a line, with its reason and column (1-based)."""

    def __init__(self, column: int, reason: str) -> None:
        super().__init__(column, reason)
        self.column = column
        self.reason = reason


def number_text(value: int) -> str:
    """A number as disassemblers print it: decimal up to 9, hexadecimal from there."""
    if value < 0:
        return "-" + number_text(-value)
    return str(value) if value <= 9 else f"{value:#x}"


@dataclass(slots=True)
class Term:
    """A number or symbol name, added or subtracted (`sign`)."""

    sign: int
    content: int | str
    column: int


def fixed_width(value: int, width: int, column: int) -> bytes:
    """The number as `width` little-endian bytes, signed or unsigned. Raises Refusal."""
    bits = width * 8
    if not -(1 << (bits - 1)) <= value < (1 << bits):
        raise Refusal(column, f"{value:#x} does not fit {bits} bits")
    return (value & ((1 << bits) - 1)).to_bytes(width, "little")


@dataclass(slots=True)
class AsmExpression:
    """A sum. `constant` is its value if it names no symbol."""

    terms: tuple[Term, ...]
    column: int
    constant: int | None

    def text(self) -> str:
        """Text of the sum: ` + ` and ` - ` between its terms."""
        if len(self.terms) == 1 and self.terms[0].sign > 0 and isinstance(self.terms[0].content, str):
            return self.terms[0].content
        text = ""
        for term in self.terms:
            content = term.content if isinstance(term.content, str) else number_text(term.content)
            if text:
                text += f" {'+' if term.sign > 0 else '-'} {content}"
            else:
                text = content if term.sign > 0 else f"-{content}"
        return text or "0"


def expression(terms: list[Term], column: int) -> AsmExpression:
    """Sum of the terms. Raises Refusal if it is constant and not a 64-bit number."""
    if any(isinstance(term.content, str) for term in terms):
        return AsmExpression(tuple(terms), column, None)
    value = sum(term.sign * term.content for term in terms if isinstance(term.content, int))
    check_range(value, column)
    return AsmExpression(tuple(terms), column, value)


def check_range(value: int, column: int) -> None:
    """Raises Refusal for a number that does not fit 64 bits, signed or unsigned."""
    if not LOWEST <= value <= HIGHEST:
        raise Refusal(column, f"{value:#x} does not fit 64 bits")


@dataclass(slots=True)
class RegisterOperand:
    """A register operand."""

    name: str
    column: int


@dataclass(slots=True)
class Immediate:
    """A number, or the target of a branch."""

    expression: AsmExpression
    column: int


@dataclass(slots=True)
class MemoryOperand:
    """A memory operand; `size` in bytes, 0 if none was written; based on rip, the expression is the address itself."""

    size: int
    segment: str
    base: str
    index: str
    scale: int
    expression: AsmExpression
    column: int


Operand = RegisterOperand | Immediate | MemoryOperand


def parse_operands(code: str, position: int) -> tuple[Operand, ...]:
    """The operands in `code` from `position` on. Raises Refusal."""
    return _Parser(code, position).parse()


class _Parser:
    """Recursive-descent parser of the text after a mnemonic."""

    def __init__(self, code: str, position: int) -> None:
        self.tokens: list[tuple[int, str]] = []
        end = len(code.rstrip())
        while position < end:
            token = _TOKEN.match(code, position)
            if not token:
                at = position + len(code[position:]) - len(code[position:].lstrip())
                raise Refusal(at + 1, f"unexpected {code[at]!r}")
            self.tokens.append((token.start(token.lastindex or 0) + 1, token[token.lastindex or 0]))
            position = token.end()
        self.tokens.append((end + 1, ""))
        self.next = 0

    @property
    def token(self) -> str:
        return self.tokens[self.next][1]

    @property
    def column(self) -> int:
        return self.tokens[self.next][0]

    def take(self, expected: str) -> None:
        if self.token != expected:
            found = f"not {self.token!r}" if self.token else "but the line ends"
            raise Refusal(self.column, f"{expected!r} is expected, {found}")
        self.next += 1

    def parse(self) -> tuple[Operand, ...]:
        if not self.token:
            return ()
        operands = [self.operand()]
        while self.token:
            self.take(",")
            operands.append(self.operand())
        return tuple(operands)

    def operand(self) -> Operand:
        column, token = self.column, self.token
        size = SIZES.get(token, 0)
        following = self.tokens[self.next + 1][1] if token else ""
        if size and (following in ("ptr", "[") or following in SEGMENTS):
            self.next += 1
            if following == "ptr":
                self.next += 1
            return self.memory(size, column)
        if token == "ptr" and (following == "[" or following in SEGMENTS):
            self.next += 1
            return self.memory(0, column)
        if token == "[" or (token in SEGMENTS and following == ":"):
            return self.memory(0, column)
        if token in OPERANDS:
            self.next += 1
            return RegisterOperand(token, column)
        return Immediate(expression(self.sum(), column), column)

    def sum(self) -> list[Term]:
        terms = [self.term(self.sign())]
        while self.token in ("+", "-"):
            terms.append(self.term(self.sign()))
        return terms

    def sign(self) -> int:
        """The sign of the next term: an operator may be followed by a sign, as in `rbp + -8`."""
        sign = 1
        for _ in range(2):
            if self.token in ("+", "-"):
                sign = -sign if self.token == "-" else sign
                self.next += 1
        return sign

    def term(self, sign: int) -> Term:
        column, token = self.column, self.token
        if token[:1].isdigit():
            if not _NUMBER.fullmatch(token):
                raise Refusal(column, f"{token!r} is no number")
            self.next += 1
            value = int(token, 0)
            check_range(value, column)
            return Term(sign, value, column)
        if not token or not (token[0].isalpha() or token[0] in "_.$@?"):
            found = f"not {token!r}" if token else "but the line ends"
            raise Refusal(column, f"an operand is expected, {found}")
        if token in RESERVED:
            raise Refusal(column, f"register {token} can't stand here")
        self.next += 1
        return Term(sign, token, column)

    def memory(self, size: int, column: int) -> MemoryOperand:
        segment = ""
        if self.token in SEGMENTS:
            segment = self.token
            self.next += 1
            self.take(":")
        self.take("[")
        registers: list[tuple[str, int, int]] = []
        terms: list[Term] = []
        while True:
            sign = self.sign()
            part = self.scaled_register(sign)
            if part:
                registers.append(part)
            else:
                terms.append(self.term(sign))
            if self.token not in ("+", "-"):
                break
        self.take("]")
        base, index, scale = _address_registers(registers)
        shift = expression(terms, terms[0].column if terms else column)
        return MemoryOperand(size, segment, base, index, scale, shift, column)

    def scaled_register(self, sign: int) -> tuple[str, int, int] | None:
        """`reg`, `reg*scale` or `scale*reg`: (register, scale or 0, column)."""
        column, token = self.column, self.token
        following = self.tokens[self.next + 1][1] if token else ""
        scale = 0
        if token.isdigit() and following == "*":
            self.next += 2
            scale, token = int(token), self.token
            if token not in _ADDRESS_REGISTERS:
                raise Refusal(self.column, "only a register can be scaled")
            self.next += 1
        elif token in _ADDRESS_REGISTERS:
            self.next += 1
            if self.token == "*":
                self.next += 1
                if not self.token.isdigit():
                    raise Refusal(self.column, "a scale is 1, 2, 4 or 8")
                scale = int(self.token)
                self.next += 1
        elif token in RESERVED:
            raise Refusal(column, f"register {token} can't be part of an address")
        else:
            return None
        if sign < 0:
            raise Refusal(column, "a register can't be subtracted")
        if scale not in (0, 1, 2, 4, 8):
            raise Refusal(column, "a scale is 1, 2, 4 or 8")
        return token, scale, column


def _address_registers(registers: list[tuple[str, int, int]]) -> tuple[str, str, int]:
    """Base, index and scale for the processor: rsp is never an index, a single unscaled register is the base."""
    if not registers:
        return "", "", 1
    if len(registers) > 2:
        raise Refusal(registers[2][2], "an address has two registers at most")
    if len({name in REGISTERS_32 for name, _, _ in registers}) > 1:
        raise Refusal(registers[1][2], "both registers of an address have the same size")
    if any(name == "rip" for name, _, _ in registers) and (len(registers) > 1 or registers[0][1]):
        raise Refusal(registers[0][2], "rip stands alone, with a symbol or an address")
    if len(registers) == 1:
        name, scale, column = registers[0]
        if scale <= 1:
            return name, "", 1
        registers = [("", 0, column), registers[0]]
    (base, base_scale, _), (index, scale, column) = registers
    if base_scale > 1 and scale > 1:
        raise Refusal(column, "only one register of an address can be scaled")
    if base_scale > scale or (index in ("rsp", "esp") and scale <= 1):
        base, index, base_scale, scale = index, base, scale, base_scale
    if index in ("rsp", "esp"):
        raise Refusal(column, f"{index} can't be an index")
    return base, index, max(scale, 1)
