"""The source language: one line of text to a `ParsedLine`, or a `Refusal` with its column.

Every operand is understood here, so that it is known what was meant before an encoder sees it. Parsed lines are kept
and shared: nothing in them changes but what a Statement remembers. (Frozen dataclasses would take three times as long.)
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from asm.branches import BRANCHES, BranchForm
from asm.encodings import LONGEST_NOP, NOPS
from asm.operands import (
    AsmExpression,
    Immediate,
    MemoryOperand,
    Operand,
    Refusal,
    RegisterOperand,
    Term,
    parse_operands,
)
from asm.registers import NUMBER_64, RESERVED

if TYPE_CHECKING:
    from asm.encoder import Encoded

LONGEST_LINE = 1000
PREFIXES = frozenset({"lock", "rep", "repe", "repne", "repz", "repnz"})
# Keystone never returns when an operand follows one of these.
_BARE_PREFIXES = PREFIXES | {"data16", "data32", "addr32", "rex64", "xacquire", "xrelease", "bnd", "notrack"}
_DATA_WIDTHS = {".byte": 1, ".word": 2, ".short": 2, ".long": 4, ".quad": 8}

# By far the most frequent line that was never seen before, so it has a path of its own.
_MOV_NUMBER = re.compile(r"\s*(mov|movabs) (r[a-z0-9]{1,2}), (0x[0-9a-f]{1,16})\s*(?:[;#](.*))?", re.ASCII)
_COMMENT = re.compile(r"[;#]")
_LABEL = re.compile(r"\s*([A-Za-z_.$@?][\w.$@?]*)\s*:", re.ASCII)
_WORD = re.compile(r"\s*([A-Za-z_.$@?{][^\s,]*)", re.ASCII)
_PHASE = re.compile(r"[a-z][a-z0-9_]{0,31}")
_MNEMONIC = re.compile(r"[a-z][a-z0-9]{0,31}")


@dataclass(slots=True)
class Statement:
    """One instruction as it was meant.

    `names` are the symbols that its encoding depends on. `target` is what a branch, or else a rip-relative operand,
    refers to: laid out afterwards. `fixed` is the encoding, once it is known, if no symbol has a part in it.
    """

    mnemonic: str
    operands: tuple[Operand, ...]
    long_form: bool
    column: int
    branch: BranchForm | None
    target: AsmExpression | None
    names: tuple[str, ...]
    fixed: Encoded | None = field(default=None, compare=False)


@dataclass(slots=True)
class Data:
    """Values of `width` bytes each."""

    directive: str
    width: int
    values: tuple[AsmExpression, ...]
    column: int


@dataclass(slots=True)
class Align:
    """Fill with nops of at most `longest_nop` bytes up to a multiple of `boundary` bytes of the image."""

    boundary: int
    longest_nop: int = LONGEST_NOP


@dataclass(slots=True)
class PhaseChange:
    """From here on instructions belong to this phase, whatever its word means to whoever wrote the text."""

    phase: str | None


@dataclass(slots=True)
class ParsedLine:
    """What one source line holds; labels with their columns."""

    labels: tuple[tuple[str, int], ...]
    item: Statement | Data | Align | PhaseChange | None
    comment: str


def parse_line(raw: str) -> ParsedLine:
    """The content of one source line. Raises Refusal."""
    if len(raw) > LONGEST_LINE:
        raise Refusal(LONGEST_LINE + 1, f"a line is longer than {LONGEST_LINE} characters")
    if (move := _MOV_NUMBER.fullmatch(raw)) and move[2] in NUMBER_64:
        return ParsedLine((), _mov_number(move), (move[4] or "").strip())
    comment = ""
    code = raw
    if found := _COMMENT.search(raw):
        code, comment = raw[: found.start()], raw[found.end() :].strip()
    labels: list[tuple[str, int]] = []
    position = 0
    while label := _LABEL.match(code, position):
        name, column = label[1], label.start(1) + 1
        if name in RESERVED:
            raise Refusal(column, f"{name} is a register, it can't be a label")
        labels.append((name, column))
        position = label.end()
    item: Statement | Data | Align | PhaseChange | None = None
    if code[position:].strip():
        item = _parse_item(code, position)
    return ParsedLine(tuple(labels), item, comment)


def _mov_number(move: re.Match[str]) -> Statement:
    value, column = int(move[3], 16), move.start(3) + 1
    number = Immediate(AsmExpression((Term(1, value, column),), column, value), column)
    operands = (RegisterOperand(move[2], move.start(2) + 1), number)
    return Statement(move[1], operands, False, move.start(1) + 1, None, None, ())


def _parse_item(code: str, position: int) -> Statement | Data | Align | PhaseChange:
    long_form = False
    prefix = ""
    while True:
        word = _WORD.match(code, position)
        if not word:
            at = position + len(code[position:]) - len(code[position:].lstrip())
            raise Refusal(at + 1, "an instruction, a label or a directive is expected")
        text, column, position = word[1], word.start(1) + 1, word.end()
        if text == "{disp32}" and not long_form:
            long_form = True
        elif text in PREFIXES and not prefix:
            prefix = {"repz": "repe", "repnz": "repne"}.get(text, text) + " "
        else:
            break
    if text.startswith(".") and not prefix and not long_form:
        return _parse_directive(text, column, code, position)
    if not _MNEMONIC.fullmatch(text) or text in _BARE_PREFIXES or text in RESERVED:
        raise Refusal(column, f"{text!r} is no mnemonic")
    operands = parse_operands(code, position)
    if len(operands) > 4:
        raise Refusal(column, "no instruction has more than four operands")
    branch = target = None
    if text in BRANCHES and len(operands) == 1 and isinstance(operands[0], Immediate):
        branch, target = BRANCHES[text], operands[0].expression
        if prefix or (long_form and not branch.long):
            raise Refusal(column, f"{text} has no such form")
    names: list[str] = []
    for operand in operands:
        if isinstance(operand, MemoryOperand) and operand.base == "rip":
            target = operand.expression
        elif not isinstance(operand, RegisterOperand) and not branch:
            names.extend(term.content for term in operand.expression.terms if isinstance(term.content, str))
    return Statement(prefix + text, operands, long_form, column, branch, target, tuple(names))


def _parse_directive(name: str, column: int, code: str, position: int) -> Data | Align | PhaseChange:
    if name == ".phase":
        word = code[position:].strip()
        if not _PHASE.fullmatch(word):
            raise Refusal(column, f"{word!r} is no phase: a phase is one word of small letters, or none")
        return PhaseChange(None if word == "none" else word)
    if name == ".align":
        values = parse_operands(code, position)
        match values:
            case (Immediate(AsmExpression(constant=int(boundary))),) if 1 <= boundary <= 4096:
                return Align(boundary)
            case (
                Immediate(AsmExpression(constant=int(boundary))),
                Immediate(AsmExpression(constant=int(longest))),
            ) if 1 <= boundary <= 4096 and longest in NOPS:
                return Align(boundary, longest)
        raise Refusal(column, f".align takes a number from 1 to 4096, and the longest nop, up to {max(NOPS)}")
    if width := _DATA_WIDTHS.get(name):
        values = parse_operands(code, position)
        expressions = tuple(value.expression for value in values if isinstance(value, Immediate))
        if not values or len(expressions) != len(values):
            raise Refusal(column, f"{name} takes numbers and symbols")
        return Data(name, width, expressions, column)
    raise Refusal(column, f"unknown directive {name}")
