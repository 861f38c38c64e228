"""Breakpoints and decoding for calls and returns."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from asm.encodings import INT3
from emu.debug.breakpoints import Breakpoint
from emu.errors import EmuError
from emu.kernel.text.entry import SITE_SIZE
from emu.machine.address_map import PAGE_SIZE
from emu.machine.machine import Machine

if TYPE_CHECKING:
    from emu.debug.debugger import Debugger


def is_call(code: bytes) -> bool:
    """True if an instruction is a call."""
    code = _without_prefixes(code)
    return code[:1] == b"\xe8" or (code[:1] == b"\xff" and len(code) > 1 and code[1] >> 3 & 7 in (2, 3))


def is_return(code: bytes) -> bool:
    """True if an instruction is a return."""
    return _without_prefixes(code)[:1] in (b"\xc3", b"\xc2")


def is_repeated(code: bytes) -> bool:
    """True for a string instruction with a repeat prefix."""
    return code[:1] in (b"\xf2", b"\xf3") and _without_prefixes(code)[:1] in _STRINGS


_STRINGS = tuple(bytes([byte]) for byte in (*range(0x6C, 0x70), *range(0xA4, 0xA8), *range(0xAA, 0xB0)))
_PREFIXES = frozenset((0xF2, 0xF3, 0x3E, 0x2E, 0x66, *range(0x40, 0x50)))


def _without_prefixes(code: bytes) -> bytes:
    at = 0
    while at < len(code) and code[at] in _PREFIXES:
        at += 1
    return code[at:]


def return_addresses(machine: Machine, rsp: int, stack_top: int) -> Iterator[int]:
    """Words of a stack from rsp upwards that may be return addresses: addresses of kernel code."""
    if not 0 < stack_top - rsp <= 4 * PAGE_SIZE:
        return
    content = machine.read(rsp, stack_top - rsp)
    for at in range(0, len(content) - 7, 8):
        word = int.from_bytes(content[at : at + 8], "little")
        if word >> 63:
            yield word


@dataclass(frozen=True)
class Returned(Breakpoint):
    """A call has returned to one of these addresses with at least this rsp. ``by_ret``: by an instruction ret."""

    targets: frozenset[int]
    rsp: int
    by_ret: bool = False

    def addresses(self, debugger: "Debugger") -> Iterable[int]:
        return self.targets

    def met(self, debugger: "Debugger") -> bool:
        registers = debugger.registers()
        rsp = registers["rsp"]
        return rsp >= self.rsp and (
            not self.by_ret or debugger.kernel.machine.read_u64(rsp - 8) == registers["rip"]
        )


@dataclass(frozen=True)
class Left(Breakpoint):
    """The instruction at an address has finished all its repetitions."""

    address: int

    def addresses(self, debugger: "Debugger") -> None:
        pass

    def met(self, debugger: "Debugger") -> bool:
        return debugger.rip != self.address


@dataclass(frozen=True)
class CalledFrom(Breakpoint):
    """A call that will return to an address, with the rsp after its return."""

    target: int
    rsp: int

    def addresses(self, debugger: "Debugger") -> Iterable[int]:
        return range(self.target - 7, self.target - 1)

    def met(self, debugger: "Debugger") -> bool:
        registers = debugger.registers()
        rip = registers["rip"]
        if registers["rsp"] != self.rsp:
            return False
        try:
            code = debugger.read(rip, self.target - rip)
        except EmuError:
            return False
        if code[:1] == INT3:
            return len(code) == SITE_SIZE  # a site that is being patched with a call
        return is_call(code) and len(debugger.code_line(rip).code) == len(code)
