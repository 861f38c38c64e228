"""Errors of the assembler, with the root `AsmError`."""

from __future__ import annotations

import errno as _errno


class AsmError(Exception):
    """Root of all errors of this package."""


class LocatedError(AsmError):
    """Error at a position in a source text: its `name`, `line` and `column` (1-based), and the line itself (`source`).
    """

    def __init__(self, name: str, line: int, column: int, source: str, reason: str) -> None:
        super().__init__(name, line, column, source, reason)
        self.name = name
        self.line = line
        self.column = column
        self.source = source
        self.reason = reason

    def __str__(self) -> str:
        # Tabs stay tabs, so that the caret is under its character.
        indent = "".join("\t" if char == "\t" else " " for char in self.source[: self.column - 1])
        return f"{self.name}:{self.line}:{self.column}: {self.reason}\n  {self.source}\n  {indent}^"


class AssemblySyntaxError(LocatedError):
    """The text is not a valid statement."""


class EncodingMismatch(LocatedError):
    """The encoder produced another instruction (`got`, a disassembly, and `code`, its bytes) than the one `meant`."""

    def __init__(self, name: str, line: int, column: int, source: str, meant: str, got: str, code: bytes) -> None:
        super().__init__(name, line, column, source, f"'{meant}' would be encoded as '{got}' ({code.hex()})")
        self.args = (name, line, column, source, meant, got, code)
        self.meant = meant
        self.got = got
        self.code = code


class DisplacementError(AsmError):
    """`target` is out of reach of the instruction at `address` (guest addresses). The kernel returns -ERANGE."""

    errno = _errno.ERANGE

    def __init__(self, address: int, target: int, bits: int = 32) -> None:
        super().__init__(address, target, bits)
        self.address = address
        self.target = target
        self.bits = bits

    def __str__(self) -> str:
        return f"{self.target:#x} is out of reach of a {self.bits}-bit displacement at {self.address:#x}"
