"""`assemble`: a text to an `Image`. Labels, branches, alignment and rip-relative operands are laid out here."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple, NoReturn

from asm.encoder import (
    NOP_ENCODINGS,
    Encoded,
    EncodeFailure,
    Request,
    cached,
    encode_all,
    from_table,
    mov_number,
    remember,
)
from asm.encodings import MASK, displacement
from asm.engines import capstone
from asm.errors import AsmError, AssemblySyntaxError, DisplacementError, EncodingMismatch
from asm.image import Image, Line
from asm.operands import Immediate, Refusal, RegisterOperand, fixed_width, number_text
from asm.resolve import evaluate, resolve, symbolic_text
from asm.syntax import Align, Data, ParsedLine, PhaseChange, Statement, parse_line

# Branches only grow; labels in immediates could in theory make sizes swing, and are stopped here.
_MOST_ROUNDS = 64

_parsed: dict[str, ParsedLine] = {}
# Images of one template share most of their lines; finding one takes a seventh of the time of making it.
_lines: dict[tuple[int, int, str, str, str | None], Line] = {}
# Every kernel that boots assembles the same text again, and twice: with its callees' addresses guessed, then known.
_images: dict[tuple[str, int, str], tuple[_Made, ...]] = {}
_MOST_IMAGES = 1 << 12
_MADE_OF_ONE_TEXT = 4


class _Made(NamedTuple):
    """An image, and the values of the symbols from outside that went into it."""

    image: Image
    used: dict[str, int | None]


class _Piece:
    """One statement, or directive that makes bytes, on its way to a place in the image."""

    __slots__ = ("comment", "encoded", "item", "late", "line", "long", "offset", "phase", "raw", "size")

    def __init__(self, item: Statement | Data | Align, line: int, raw: str, comment: str, phase: str | None) -> None:
        self.item = item
        self.line = line
        self.raw = raw
        self.comment = comment
        self.phase = phase
        self.encoded: Encoded | None = None
        self.long = False
        self.late = False
        self.offset = 0
        self.size = 0


def assemble(
    text: str, address: int = 0, symbols: Mapping[str, int] = MappingProxyType({}), *, name: str = "<asm>"
) -> Image:
    """The text as machine code at the guest address `address`.

    `symbols` gives names their values; the text's own labels come first. Raises AssemblySyntaxError and
    EncodingMismatch with the place in the text (`name` stands for it), DisplacementError for a target out of reach.
    """
    if not 0 <= address <= MASK:
        raise AsmError(f"{address:#x} is no 64-bit address")
    key = (text, address, name)
    known = _images.get(key, ())
    for made in known:
        if all(symbols.get(symbol) == value for symbol, value in made.used.items()):
            return made.image
    assembly = _Assembly(address, symbols, name)
    image = assembly.assemble(text)
    remember(_images, key, (_Made(image, assembly.used), *known[: _MADE_OF_ONE_TEXT - 1]), _MOST_IMAGES)
    return image


class _Assembly:
    def __init__(self, address: int, symbols: Mapping[str, int], name: str) -> None:
        self.address = address
        self.symbols = symbols
        # What was asked of them, and the answers: the image depends on no others.
        self.used: dict[str, int | None] = {}
        self.name = name
        self.pieces: list[_Piece] = []
        # Each label's piece: the one that follows it.
        self.labels: dict[str, int] = {}
        self.places: dict[str, int] = {}
        # What the layout may still change.
        self.movable: list[_Piece] = []

    def assemble(self, text: str) -> Image:
        self.parse(text)
        self.encode()
        self.lay_out()
        return self.emit()

    def parse(self, text: str) -> None:
        phase: str | None = None
        pieces = self.pieces
        for line, raw in enumerate(text.split("\n"), 1):
            parsed = _parsed.get(raw)
            if parsed is None:
                try:
                    parsed = parse_line(raw)
                except Refusal as refusal:
                    self.refuse(refusal, line, raw)
                remember(_parsed, raw, parsed)
            if parsed.labels:
                self.define(parsed, line, raw)
            item = parsed.item
            if item is None:
                continue
            if isinstance(item, PhaseChange):
                phase = item.phase
            else:
                pieces.append(_Piece(item, line, raw, parsed.comment, phase))

    def define(self, parsed: ParsedLine, line: int, raw: str) -> None:
        for label, column in parsed.labels:
            if label in self.labels:
                self.refuse(Refusal(column, f"label {label} is defined twice"), line, raw)
            self.labels[label] = len(self.pieces)

    def refuse(self, refusal: Refusal, line: int, raw: str) -> NoReturn:
        raise AssemblySyntaxError(self.name, line, refusal.column, raw, refusal.reason) from None

    def lookup(self, symbol: str, column: int) -> int:
        value = self.places.get(symbol)
        if value is None:
            value = self.outside(symbol)
            if value is None:
                raise Refusal(column, f"unknown symbol {symbol!r}")
        return value

    def outside(self, symbol: str) -> int | None:
        """The value of a symbol that is no label of the text; None where there is none."""
        value = self.used[symbol] = self.symbols.get(symbol)
        return value

    def encode(self) -> None:
        """Finds the encodings that don't depend on the layout, those that are new in one go."""
        wanted: list[tuple[_Piece, Request]] = []
        labels = self.labels
        for piece in self.pieces:
            item = piece.item
            if type(item) is Statement:
                if item.fixed is not None:
                    piece.encoded = item.fixed
                    piece.size = len(item.fixed.code)
                elif item.branch is not None:
                    piece.long = item.long_form or not item.branch.short
                    piece.size = item.branch.size(piece.long)
                    self.movable.append(piece)
                elif labels and any(symbol in labels for symbol in item.names):
                    piece.late = True
                    self.movable.append(piece)
                else:
                    self.find(piece, wanted)
            elif type(item) is Data:
                piece.size = item.width * len(item.values)
            else:
                self.movable.append(piece)
        self.encode_wanted(wanted)

    def find(self, piece: _Piece, wanted: list[tuple[_Piece, Request]]) -> None:
        """The encoding of a statement from the table or the cache; else it is added to `wanted`."""
        item = piece.item
        assert type(item) is Statement
        try:
            encoded = self.mov_number(item)
            if encoded is None:
                request = resolve(item, self.lookup)
                encoded = from_table(request) or cached(request)
        except Refusal as refusal:
            self.refuse(refusal, piece.line, piece.raw)
        except EncodeFailure as failure:
            self.fail(piece, failure)
        if encoded is None:
            wanted.append((piece, request))
        else:
            self.settle(piece, encoded)

    def mov_number(self, item: Statement) -> Encoded | None:
        """The encoding of a move of a number to a register, without the detour of a Request: most new lines are one."""
        if len(item.operands) != 2 or item.long_form:
            return None
        register, number = item.operands
        if (
            type(register) is not RegisterOperand
            or type(number) is not Immediate
            or item.mnemonic not in ("mov", "movabs")
        ):
            return None
        return mov_number(item.mnemonic, register.name, evaluate(number.expression, self.lookup))

    def encode_wanted(self, wanted: list[tuple[_Piece, Request]]) -> None:
        if not wanted:
            return
        results = encode_all(request for _, request in wanted)
        for piece, request in wanted:
            encoded = results[request]
            if isinstance(encoded, EncodeFailure):
                self.fail(piece, encoded, request)
            self.settle(piece, encoded)

    def settle(self, piece: _Piece, encoded: Encoded) -> None:
        piece.encoded = encoded
        piece.size = len(encoded.code)
        item = piece.item
        if type(item) is Statement and not item.names:
            item.fixed = encoded

    def fail(self, piece: _Piece, failure: EncodeFailure, request: Request | None = None) -> NoReturn:
        column = piece.item.column if isinstance(piece.item, Statement) else 1
        if request is not None and failure.got:
            raise EncodingMismatch(
                self.name, piece.line, column, piece.raw, request.meant.text(), failure.got, failure.code
            ) from None
        raise AssemblySyntaxError(self.name, piece.line, column, piece.raw, failure.reason) from None

    def lay_out(self) -> None:
        """Gives every piece its offset; short branches grow until all reach."""
        self.place()
        if not self.movable:
            return
        for _ in range(_MOST_ROUNDS):
            changed = False
            wanted: list[tuple[_Piece, Request]] = []
            before = [(piece, piece.size) for piece in self.movable if piece.late]
            for piece in self.movable:
                if piece.late:
                    self.find(piece, wanted)
                elif type(piece.item) is Align:
                    size = -piece.offset % piece.item.boundary
                    changed |= size != piece.size
                    piece.size = size
                elif not piece.long:
                    changed |= self.grow(piece)
            self.encode_wanted(wanted)
            changed |= any(piece.size != size for piece, size in before)
            if not changed:
                return
            self.place()
        raise AsmError(f"{self.name}: the sizes of instructions and the values of labels do not settle")

    def place(self) -> None:
        offset = 0
        for piece in self.pieces:
            piece.offset = offset
            offset += piece.size
        if self.labels:
            offsets = [piece.offset for piece in self.pieces]
            offsets.append(offset)
            self.places = {label: (self.address + offsets[index]) & MASK for label, index in self.labels.items()}
        if self.address + offset > MASK + 1:
            raise AsmError(f"{self.name}: {offset} bytes at {self.address:#x} pass the end of the address space")

    def grow(self, piece: _Piece) -> bool:
        item = piece.item
        assert type(item) is Statement
        assert item.branch is not None
        if not item.branch.long or item.branch.reaches(self.address + piece.offset, self.target(piece, item)):
            return False
        piece.long = True
        piece.size = item.branch.size(True)
        return True

    def target(self, piece: _Piece, item: Statement) -> int:
        """The address that a branch or a rip-relative operand names, with the labels where they are now."""
        assert item.target is not None
        terms = item.target.terms
        if len(terms) == 1 and terms[0].sign > 0 and type(symbol := terms[0].content) is str:
            value = self.places.get(symbol)
            if value is None:
                value = self.outside(symbol)
            if value is not None and 0 <= value <= MASK:
                return value
        try:
            return evaluate(item.target, self.lookup) & MASK
        except Refusal as refusal:
            self.refuse(refusal, piece.line, piece.raw)

    def emit(self) -> Image:
        code = bytearray()
        lines: list[Line] = []
        expected: list[tuple[int, int, str, str]] = []
        spans: list[tuple[int, int]] = []
        start = 0
        for piece in self.pieces:
            item = piece.item
            offset = piece.offset
            if type(item) is Statement:
                encoded = piece.encoded
                if encoded is not None and encoded.rip_at < 0:
                    code += encoded.code
                    expected.append((self.address + offset, piece.size, encoded.mnemonic, encoded.operands))
                    text = symbolic_text(item, encoded) if item.names else encoded.text
                else:
                    text = self.emit_relative(piece, item, code, expected)
                key = (offset, piece.size, text, piece.comment, piece.phase)
                line = _lines.get(key)
                if line is None:
                    line = Line(*key)
                    remember(_lines, key, line)
                lines.append(line)
            elif type(item) is Data:
                if start < offset:
                    spans.append((start, offset))
                start = offset + piece.size
                code += self.data(piece, item)
                values = ", ".join(value.text() for value in item.values)
                lines.append(Line(offset, piece.size, f"{item.directive} {values}", piece.comment, piece.phase))
            elif type(item) is Align:
                self.emit_nops(piece, item.longest_nop, code, lines, expected)
        if start < len(code):
            spans.append((start, len(code)))
        self.check(bytes(code), spans, expected)
        return Image(self.address, bytes(code), self.places, tuple(lines), self.name)

    def emit_relative(
        self, piece: _Piece, item: Statement, code: bytearray, expected: list[tuple[int, int, str, str]]
    ) -> str:
        """A branch, or an instruction with a rip-relative operand; gives its text."""
        at = self.address + piece.offset
        target = self.target(piece, item)
        assert item.target is not None
        shown = number_text(target) if item.target.constant is not None else item.target.text()
        encoded = piece.encoded
        try:
            if encoded is None:
                assert item.branch is not None
                code += item.branch.encode(at, target, piece.long)
                expected.append((at, piece.size, item.branch.mnemonic, number_text(target)))
                return f"{item.branch.mnemonic} {shown}"
            distance = displacement(at + piece.size, target, 32, at)
        except DisplacementError as error:
            error.add_note(f"{self.name}:{piece.line}:{item.column}: {piece.raw.strip()}")
            raise
        code += encoded.code
        place = piece.offset + encoded.rip_at
        code[place : place + 4] = struct.pack("<i", distance)
        shift = f"rip {'-' if distance < 0 else '+'} {number_text(abs(distance))}" if distance else "rip"
        expected.append((at, piece.size, encoded.mnemonic, encoded.operands_with_rip(shift)))
        if item.names:
            return symbolic_text(item, encoded)
        shown = f"rip - {shown[1:]}" if shown.startswith("-") else f"rip + {shown}"
        return f"{encoded.mnemonic} {encoded.operands_with_rip(shown)}"

    def data(self, piece: _Piece, item: Data) -> bytes:
        try:
            return b"".join(
                fixed_width(evaluate(value, self.lookup), item.width, value.column) for value in item.values
            )
        except Refusal as refusal:
            self.refuse(refusal, piece.line, piece.raw)

    def emit_nops(
        self, piece: _Piece, longest: int, code: bytearray, lines: list[Line], expected: list[tuple[int, int, str, str]]
    ) -> None:
        left, offset = piece.size, piece.offset
        while left:
            nop = NOP_ENCODINGS[min(left, longest)]
            size = len(nop.code)
            code += nop.code
            expected.append((self.address + offset, size, nop.mnemonic, nop.operands))
            lines.append(Line(offset, size, nop.text, piece.comment, piece.phase))
            left -= size
            offset += size

    def check(self, code: bytes, spans: list[tuple[int, int]], expected: list[tuple[int, int, str, str]]) -> None:
        """Decodes the finished code end to end: boundaries, mnemonics, operands and targets have to be as laid out."""
        engine = capstone()
        decoded: list[tuple[int, int, str, str]] = []
        for start, end in spans:
            decoded += engine.disasm_lite(code[start:end], self.address + start)
        if decoded == expected:
            return
        got, want = next(
            ((got, want) for got, want in zip(decoded, expected, strict=False) if got != want), ("nothing", "nothing")
        )
        raise AsmError(f"{self.name}: the finished image decodes as {got}, not as {want}")
