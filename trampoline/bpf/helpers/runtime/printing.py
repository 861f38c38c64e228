"""Formatted output: bpf_trace_printk(), bpf_trace_vprintk(), bpf_snprintf() (``bpf_bprintf_prepare``).

A format may contain the conversions that the kernel allows to programs: d i u x X with l and ll, c, s, pks, pus, and
pointers p px pK ps pS pB pi4 pI4 pi6 pI6. Pointers are printed unhashed (``no_hash_pointers``).
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from errno import EINVAL

from emu.kernel.errors import KernelError
from emu.kernel.structs import task_struct
from trampoline.bpf.helpers.runtime.definition import U64, Helper, HelperCall, python_helper, signed

MAX_TRACE_PRINTK_VARARGS = 3
MAX_BPRINTF_VARARGS = 12
MAX_BPRINTF_BUF = 1024
MAX_STRING = 512
"""Maximum number of bytes copied from a string (MAX_BPRINTF_BIN_ARGS)."""

# Flags and width, then the conversion. The letters after a pointer are parsed below.
_SPEC = re.compile(rb"%(?P<flags>[0+\- ]*)(?P<width>[1-9][0-9]*)?(?P<kind>(?:ll?)?[diuxX]|c|s|p(?:[ku]s)?|%)?")
_POINTER_END = re.compile(rb"[ -/:-@\[-`{-~\s]")
"""isspace() and ispunct()."""


@dataclass(frozen=True, slots=True)
class Directive:
    """One conversion with its flags and width."""

    kind: str
    flags: str = ""
    width: int = 0

    def padded(self, text: bytes, *, zeros: bool = False) -> bytes:
        """A text padded to its field width."""
        if "-" in self.flags:
            return text.ljust(self.width)
        if not zeros or "0" not in self.flags:
            return text.rjust(self.width)
        sign = text[:1] if text[:1] in (b"-", b"+", b" ") else b""
        return sign + text[len(sign) :].rjust(self.width - len(sign), b"0")


def parse(text: bytes) -> list[bytes | Directive]:
    """A format's literal parts and conversions; KernelError -EINVAL for conversions that programs cannot use."""
    for byte in text:
        if not (0x20 <= byte < 0x7F or byte in b"\t\n\v\f\r"):
            raise KernelError(EINVAL, f"a format with the byte {byte:#x}")
    parts: list[bytes | Directive] = []
    at = 0
    while at < len(text):
        percent = text.find(b"%", at)
        if percent < 0:
            parts.append(text[at:])
            break
        if percent > at:
            parts.append(text[at:percent])
        found = _SPEC.match(text, percent)
        assert found is not None  # it begins with a percent sign
        kind, at = found["kind"], found.end()
        if kind is None or (kind == b"%" and found[0] != b"%%"):
            raise KernelError(EINVAL, f"a format with {text[percent : at + 1].decode()!r}")
        if kind == b"%":
            parts.append(b"%")
            continue
        name = kind.decode()
        if kind == b"p":
            name, at = _pointer(text, at)
        parts.append(Directive(name, found["flags"].decode(), int(found["width"] or 0)))
    return parts


def _pointer(text: bytes, at: int) -> tuple[str, int]:
    """The letters after %p, and the index of their end."""
    letter = text[at : at + 1].decode()
    if letter and letter in "xKsSB":
        return f"p{letter}", at + 1
    if letter and letter in "iI":
        if text[at + 1 : at + 2] not in (b"4", b"6"):
            raise KernelError(EINVAL, f"a format with %p{text[at : at + 2].decode()}")
        return f"p{text[at : at + 2].decode()}", at + 2
    if letter and not _POINTER_END.match(text, at):
        raise KernelError(EINVAL, f"a format with %p{letter}")
    return "p", at


def arguments(parts: Sequence[bytes | Directive]) -> int:
    """Number of arguments that a format takes."""
    return sum(isinstance(part, Directive) for part in parts)


def render(call: HelperCall, parts: Sequence[bytes | Directive], values: Sequence[int]) -> bytes:
    """The text of a format with its arguments."""
    given: Iterator[int] = iter(values)
    return b"".join(part if isinstance(part, bytes) else _one(call, part, next(given)) for part in parts)


def _one(call: HelperCall, part: Directive, value: int) -> bytes:
    kind = part.kind
    if kind == "c":
        return part.padded(bytes([value & 0xFF]))
    if kind in ("s", "pks", "pus"):
        return part.padded(call.string(value, MAX_STRING - 1) or b"")
    if kind.startswith("p"):
        return part.padded(_address(call, kind, value), zeros=True)
    bits = 64 if kind[0] == "l" else 32
    value &= (1 << bits) - 1
    if kind[-1] in "di":
        number = signed(value, bits)
        plus = "+" if "+" in part.flags and number >= 0 else " " if " " in part.flags and number >= 0 else ""
        return part.padded(f"{plus}{number}".encode(), zeros=True)
    return part.padded(format(value, {"u": "d"}.get(kind[-1], kind[-1])).encode(), zeros=True)


def _address(call: HelperCall, kind: str, value: int) -> bytes:
    if kind in ("p", "px", "pK"):
        return f"{value:016x}".encode()
    if kind in ("ps", "pS", "pB"):
        symbol = call.kernel.kallsyms.at(value)
        if symbol is None:
            return f"0x{value:x}".encode()
        where = "" if kind == "ps" else f"+0x{value - symbol.address:x}/0x{symbol.size:x}"
        return f"{symbol.name}{where}".encode()
    size = 4 if kind[2] == "4" else 16
    data = call.read_nofault(value, size) or bytes(size)
    if size == 4:
        # %pi4 has leading zeros.
        return ".".join(f"{byte:03}" if kind[1] == "i" else str(byte) for byte in data).encode()
    words = [data[at : at + 2].hex() for at in range(0, 16, 2)]
    return "".join(words).encode() if kind[1] == "i" else ":".join(words).encode()


@dataclass(frozen=True, slots=True)
class TraceLine:
    """One line of the trace buffer; ``time`` in nanoseconds of virtual time."""

    text: str
    cpu: int
    pid: int
    comm: str
    time: int

    def __str__(self) -> str:
        seconds, rest = divmod(self.time, 1_000_000_000)
        where = f"{self.comm:>16}-{self.pid:<7} [{self.cpu:03}] ....1 {seconds:5}.{rest // 1000:06}"
        return f"{where}: bpf_trace_printk: {self.text}"


def _format(call: HelperCall, address: int, size: int) -> list[bytes | Directive]:
    text, end, _ = call.read(address, size & 0xFFFFFFFF).partition(b"\0")
    if not end:
        raise KernelError(EINVAL, "a format without an end")
    return parse(text)


def _print(call: HelperCall, parts: Sequence[bytes | Directive], values: Sequence[int]) -> int:
    text = render(call, parts, values)
    task = task_struct.view(call.kernel.machine, call.kernel.current(call.vcpu))
    shown = text[: MAX_BPRINTF_BUF - 1].decode("utf-8", "backslashreplace")
    comm = task.comm.split(b"\0", 1)[0].decode("utf-8", "backslashreplace")
    call.runtime.trace.append(TraceLine(shown, call.vcpu.index, task.pid, comm, call.runtime.now_ns))
    return len(text)


def _varargs(call: HelperCall, data: int, size: int) -> list[int]:
    """The arguments in an array: -EINVAL for an invalid size."""
    size &= 0xFFFFFFFF
    if size % 8 or size > 8 * MAX_BPRINTF_VARARGS or (size and not data):
        raise KernelError(EINVAL, f"{size} bytes of arguments")
    raw = call.read(data, size)
    return [int.from_bytes(raw[at : at + 8], "little") for at in range(0, size, 8)]


@python_helper("bpf_trace_printk")
def trace_printk(call: HelperCall, address: int, size: int, first: int, second: int, third: int) -> int:
    """Write a line with up to three arguments into the trace buffer; returns its length."""
    parts = _format(call, address, size)
    if arguments(parts) > MAX_TRACE_PRINTK_VARARGS:
        return -EINVAL
    return _print(call, parts, (first, second, third))


@python_helper("bpf_trace_vprintk")
def trace_vprintk(call: HelperCall, address: int, size: int, data: int, data_len: int) -> int:
    """Write a line with arguments from an array; returns its length."""
    values = _varargs(call, data, data_len)
    parts = _format(call, address, size)
    if arguments(parts) > len(values):
        return -EINVAL
    return _print(call, parts, values)


@python_helper("bpf_snprintf")
def snprintf(call: HelperCall, buffer: int, size: int, address: int, data: int, data_len: int) -> int:
    """Print into a buffer; returns the length of the whole text with its NUL."""
    values = _varargs(call, data, data_len)
    text = call.string(address, 1 << 16)
    if text is None:
        return -EINVAL
    parts = parse(text)
    if arguments(parts) > len(values):
        return -EINVAL
    shown = render(call, parts, values)
    size &= 0xFFFFFFFF
    if size:
        call.write(buffer, shown[: size - 1] + b"\0")
    return len(shown) + 1 & U64


HELPERS: tuple[Helper, ...] = (trace_printk, trace_vprintk, snprintf)
