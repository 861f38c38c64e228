"""Errors of the BPF machinery, with one root. The kernel's own refusals are ``emu.kernel.errors.KernelError``."""

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
    """Code in process context, with a defect injected, did what would crash a kernel."""


class PrototypeError(TrampolineError):
    """A C prototype that cannot be read, or that contradicts the function's own."""


class GoldenError(TrampolineError):
    """A damaged golden file, or a file that is not one."""


class BtfError(TrampolineError):
    """BTF that is damaged, foreign or of a form that cannot be read, or a requested type that it does not contain.

    ``offset``: position in the uncompressed BTF in bytes; None if the fault has none.
    """

    def __init__(self, reason: str, offset: int | None = None) -> None:
        super().__init__(reason if offset is None else f"BTF at byte 0x{offset:x}: {reason}")
        self.reason = reason
        self.offset = offset


class ObjectError(TrampolineError):
    """A BPF object that cannot be read or resolved against a kernel; nothing of it is loaded.

    ``object_name`` is the file, ``section`` the section or program at fault (may be empty), ``reason`` the fault.
    """

    def __init__(self, reason: str, *, section: str = "", object_name: str = "") -> None:
        super().__init__(": ".join(part for part in (object_name, section, reason) if part))
        self.reason = reason
        self.section = section
        self.object_name = object_name


class BytecodeError(TrampolineError):
    """eBPF that is not an instruction.

    ``slot``: position in the program, in slots of 8 bytes; None if it has none.
    """

    def __init__(self, reason: str, slot: int | None = None) -> None:
        super().__init__(reason if slot is None else f"slot {slot}: {reason}")
        self.reason = reason
        self.slot = slot


class BytecodeSyntaxError(TrampolineError):
    """eBPF text that cannot be read. ``line`` and ``column`` count from 1; ``expected``: the accepted words."""

    def __init__(self, line: int, column: int, expected: str, found: str) -> None:
        super().__init__(f"line {line}, column {column}: expected {expected}, found {found}")
        self.line = line
        self.column = column
        self.expected = expected
        self.found = found
