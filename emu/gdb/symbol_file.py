"""The symbol file of a kernel: its functions, images and programs by name, with unwind information."""

import errno
import os
import tempfile
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from asm.image import Image
from emu.atomic_file import write_whole
from emu.elf.writer import CodeRange, NewElfSymbol, elf_file
from emu.gdb.dwarf import debug_frame, frame_program, outermost
from emu.kernel.kernel import Kernel
from emu.machine.hostcall import SLOT
from emu.machine.machine import Machine
from emu.machine.paging import NX
from emu.machine.unwind import unwind_rows

RETURN_SYMBOL = "tramplab_return"
"""Symbol of the return address of calls from outside: the end of every backtrace."""
PROCESS_CONTEXT = "process_context"
"""Symbol of the pseudo address of operations."""


@dataclass(frozen=True, slots=True)
class _Code:
    """A function or image: its name, its address, and its bytes when it was placed.

    ``replaced_at``: the instruction that overwrites the return address, if there is one.
    """

    name: str
    address: int
    code: bytes
    replaced_at: int | None = None


def process_context(machine: Machine) -> int:
    """The pseudo address of process context: not mapped."""
    return machine.host_calls.address + machine.host_calls.size


def symbol_file(kernel: Kernel) -> bytes:
    """The symbol file of a kernel in its current state."""
    pieces = sorted(_pieces(kernel), key=lambda piece: piece.address)
    machine = kernel.machine
    stubs = machine.host_calls
    symbols = [NewElfSymbol(symbol.name, symbol.address, symbol.size) for symbol in kernel.kallsyms]
    known = {symbol.address for symbol in symbols}
    symbols += [
        NewElfSymbol(piece.name, piece.address, len(piece.code)) for piece in pieces if piece.address not in known
    ]
    symbols = [_sized(symbol, SLOT if stubs.is_stub(symbol.address) else 0) for symbol in symbols]
    # A return address is looked up by the byte before it.
    symbols.append(NewElfSymbol(RETURN_SYMBOL, stubs.return_address - 1, SLOT + 1))
    symbols.append(NewElfSymbol(PROCESS_CONTEXT, process_context(machine), 1))
    programs: dict[tuple[bytes, int | None], bytes] = {}
    frames = []
    for piece in pieces:
        # Stamped text is processed once per body; only its inner calls and jumps are followed.
        key = piece.code, None if piece.replaced_at is None else piece.replaced_at - piece.address
        if key not in programs:
            programs[key] = frame_program(unwind_rows(piece.code, piece.address, piece.replaced_at))
        frames.append((piece.address, len(piece.code), programs[key]))
    frames.append((stubs.return_address - 1, SLOT + 1, outermost()))
    frames.append((stubs.return_address + SLOT, stubs.size - SLOT, b""))
    frames.append((process_context(machine), 1, outermost()))
    ranges = _ranges(symbols, kernel)
    return elf_file(ranges, sorted(symbols, key=lambda one: one.address), {".debug_frame": debug_frame(frames)})


class SymbolFile:
    """The file that gdb reads. Without a ``path`` it is a temporary one, which ``close`` removes.

    OSError if it can't be written completely; no partial file is left.
    """

    def __init__(self, kernel: Kernel, path: Path | None = None) -> None:
        self._kernel = kernel
        self._is_own = path is None
        if path is None:
            number, name = tempfile.mkstemp(prefix="tramplab-", suffix=".elf")
            os.close(number)
            path = Path(name)
        elif path.exists() and not path.is_file():
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        self.path = path
        self._of: object = None
        self.update()

    def update(self) -> bool:
        """Write it if images or symbols have changed; returns True if they have."""
        images = tuple((image.address, image.name) for image in self._kernel.machine.images.listed())
        now = (images, len(self._kernel.kallsyms))
        if now == self._of:
            return False
        write_whole({self.path: symbol_file(self._kernel)})
        self._of = now
        return True

    def close(self) -> None:
        """Remove a temporary file."""
        if self._is_own:
            self.path.unlink(missing_ok=True)


def _pieces(kernel: Kernel) -> Iterator[_Code]:
    """Every function and image: as it was placed if that is known, otherwise from memory."""
    machine = kernel.machine
    seen = set()
    for symbol in kernel.kallsyms:
        image = machine.images.at(symbol.address)
        if image is not None:
            if image.address not in seen:
                seen.add(image.address)
                yield _code_of(machine, image, symbol.name if image.address == symbol.address else image.name)
        elif is_executable(kernel.machine, symbol.address) and symbol.size > 1:
            yield _Code(symbol.name, symbol.address, machine.read(symbol.address, symbol.size))
    for image in machine.images.listed():
        if image.address not in seen:
            yield _code_of(machine, image, image.name)


def _code_of(machine: Machine, image: Image, name: str) -> _Code:
    names = machine.images.stack_names(image)
    return _Code(name, image.address, image.code, names.replaced_at if names is not None else None)


def _sized(symbol: NewElfSymbol, least: int) -> NewElfSymbol:
    return symbol if symbol.size >= least else NewElfSymbol(symbol.name, symbol.address, least)


def _ranges(symbols: list[NewElfSymbol], kernel: Kernel) -> list[CodeRange]:
    """Sections around the code, one for each part of the address map."""
    layout = kernel.machine.layout
    stubs = "host_calls", layout.host_calls - 1
    parts = sorted((("text", layout.text), ("modules", layout.modules), stubs), key=_base)
    ends: dict[str, int] = {}
    for symbol in symbols:
        if is_executable(kernel.machine, symbol.address) or symbol.name == PROCESS_CONTEXT:
            position = bisect_right(parts, symbol.address, key=_base) - 1
            if position >= 0:
                name = parts[position][0]
                ends[name] = max(ends.get(name, 0), symbol.address + symbol.size)
    return [CodeRange(f".{name}", base, ends[name]) for name, base in parts if name in ends]


def is_executable(machine: Machine, address: int) -> bool:
    """True if an address is text."""
    entry = machine.page_entry(address)
    return entry != 0 and not entry & NX


def _base(part: tuple[str, int]) -> int:
    return part[1]
