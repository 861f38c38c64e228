"""What can go wrong between text and machine code. One root, `AsmError`."""

from __future__ import annotations

import errno as _errno


class AsmError(Exception):
    """The root of everything that this package raises."""


class LocatedError(AsmError):
    """An error with a place in a source text: its `name`, `line` and `column` (1-based), that line (`source`)."""

    def __init__(self, name: str, line: int, column: int, source: str, reason: str) -> None:
        super().__init__(name, line, column, source, reason)
        self.name = name
        self.line = line
        self.column = column
        self.source = source
        self.reason = reason

    def __str__(self) -> str:
        # Tabs stay tabs, so that the caret stands under the character that it means.
        indent = "".join("\t" if char == "\t" else " " for char in self.source[: self.column - 1])
        return f"{self.name}:{self.line}:{self.column}: {self.reason}\n  {self.source}\n  {indent}^"


class AssemblySyntaxError(LocatedError):
    """The text is no statement that can be assembled."""


class EncodingMismatch(LocatedError):
    """The encoder made another instruction (`got`, a disassembly, and `code`, its bytes) than the one `meant`."""

    def __init__(self, name: str, line: int, column: int, source: str, meant: str, got: str, code: bytes) -> None:
        super().__init__(name, line, column, source, f"'{meant}' would be encoded as '{got}' ({code.hex()})")
        self.args = (name, line, column, source, meant, got, code)
        self.meant = meant
        self.got = got
        self.code = code


class DisplacementError(AsmError):
    """`target` is out of reach of the instruction at `address` (guest addresses). A kernel answers -ERANGE."""

    errno = _errno.ERANGE

    def __init__(self, address: int, target: int, bits: int = 32) -> None:
        super().__init__(address, target, bits)
        self.address = address
        self.target = target
        self.bits = bits

    def __str__(self) -> str:
        return f"{self.target:#x} is out of reach of a {self.bits}-bit displacement at {self.address:#x}"
