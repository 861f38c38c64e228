"""Errors of the BPF machinery: one root. What the kernel itself would refuse is an
``emu.kernel.errors.KernelError``.
"""

from emu.kernel.errors import ENOTSUPP, KernelError, errno_name

__all__ = [
    "ENOTSUPP",
    "BtfError",
    "BytecodeError",
    "BytecodeSyntaxError",
    "GoldenError",
    "KernelError",
    "ObjectError",
    "Oops",
    "PrototypeError",
    "TrampolineError",
    "errno_name",
]


class TrampolineError(Exception):
    """Root of this package's errors."""


class Oops(TrampolineError):
    """Process context did what would have brought a kernel down, because of a defect that was asked for."""


class PrototypeError(TrampolineError):
    """A C prototype that cannot be read, or that contradicts the function's own."""


class GoldenError(TrampolineError):
    """A golden file that is damaged or is not one."""


class BtfError(TrampolineError):
    """BTF that is damaged, foreign or of a form that cannot be read, or a type asked for that it does not hold.

    ``offset`` is the place in the uncompressed BTF in bytes; None where the fault has no place there.
    """

    def __init__(self, reason: str, offset: int | None = None) -> None:
        super().__init__(reason if offset is None else f"BTF at byte 0x{offset:x}: {reason}")
        self.reason = reason
        self.offset = offset


class ObjectError(TrampolineError):
    """A BPF object that cannot be read, or not be resolved against a kernel: nothing of it is loaded.

    ``object_name`` is the file, ``section`` the section or program at fault (may be empty), ``reason`` what.
    """

    def __init__(self, reason: str, *, section: str = "", object_name: str = "") -> None:
        super().__init__(": ".join(part for part in (object_name, section, reason) if part))
        self.reason = reason
        self.section = section
        self.object_name = object_name


class BytecodeError(TrampolineError):
    """eBPF that is not an instruction.

    ``slot`` is its place in the program, counted in 8 bytes; None where it has none.
    """

    def __init__(self, reason: str, slot: int | None = None) -> None:
        super().__init__(reason if slot is None else f"slot {slot}: {reason}")
        self.reason = reason
        self.slot = slot


class BytecodeSyntaxError(TrampolineError):
    """eBPF text that cannot be read. ``line`` and ``column`` count from 1; ``expected`` is what could stand there."""

    def __init__(self, line: int, column: int, expected: str, found: str) -> None:
        super().__init__(f"line {line}, column {column}: expected {expected}, found {found}")
        self.line = line
        self.column = column
        self.expected = expected
        self.found = found
