"""Conversion of exceptions in the guest to errors that describe them."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import capstone
from capstone import x86_const as x86

from emu.errors import Access, NotMapped
from emu.machine.address_map import ADDRESS_MASK, PAGE_MASK, PAGE_SHIFT
from emu.machine.paging import NX, RW, frame_of

if TYPE_CHECKING:
    from emu.machine.vcpu import Vcpu

GENERAL_PROTECTION, PAGE_FAULT, INT3 = 13, 14, 3
LONGEST_INSTRUCTION = 15

_KINDS = {
    0: "divide error",
    1: "debug exception",
    4: "overflow",
    5: "bound range exceeded",
    6: "invalid opcode",
    7: "device not available",
    8: "double fault",
    10: "invalid TSS",
    11: "segment not present",
    12: "stack segment fault",
    13: "general protection",
    14: "page fault",
    16: "floating-point error",
    17: "alignment check",
    19: "SIMD exception",
}

FAULTS = frozenset(_KINDS) - {1, 4}
"""Exceptions that leave rip at the instruction that raised them, which was not executed."""


def kind_of(number: int) -> str:
    """Name of an exception."""
    return _KINDS.get(number, f"unhandled interrupt {number:#x}")


def access_of(vcpu: "Vcpu", rip: int, address: int) -> Access:
    """Kind of the access that caused a page fault at ``address``."""
    entry = vcpu.machine.page_entry(address)
    fetched = address == rip or (not address & PAGE_MASK and 0 < address - rip < LONGEST_INSTRUCTION)
    if fetched and (not frame_of(entry) or entry & NX):
        return "fetch"
    if frame_of(entry) and not entry & RW:
        return "write"
    return "write" if writes(_code(vcpu.read_code, rip)) else "read"


def _code(read: Callable[[int, int], bytes], rip: int) -> bytes:
    """Bytes of the instruction at ``rip``, as far as they are mapped."""
    room = -rip & PAGE_MASK or PAGE_MASK + 1
    first = read(rip, min(LONGEST_INSTRUCTION, room))
    if room >= LONGEST_INSTRUCTION:
        return first
    try:
        return first + read(((rip >> PAGE_SHIFT) + 1 << PAGE_SHIFT) & ADDRESS_MASK, LONGEST_INSTRUCTION - room)
    except NotMapped:
        return first


def writes(code: bytes) -> bool:
    """True if the faulting access was write-only."""
    decoder = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    decoder.detail = True
    instruction = next(decoder.disasm(code, 0, 1), None)
    if instruction is None:
        return False
    accesses = [operand.access for operand in instruction.operands if operand.type == x86.X86_OP_MEM]
    if instruction.id in (x86.X86_INS_CALL, x86.X86_INS_PUSH, x86.X86_INS_PUSHFQ, x86.X86_INS_ENTER):
        return not accesses
    return accesses[:1] == [capstone.CS_AC_WRITE]
