"""Registers of a vCPU in gdb's numbering, and their target description.

Features and names: "i386 Features" in gdb's manual. The floating-point registers are part of the core feature, so they
have numbers; kernel code of this laboratory doesn't use them, and they read as unavailable.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from xml.etree import ElementTree

NAME = "target.xml"
"""The first annex of ``qXfer:features:read``."""


@dataclass(frozen=True, slots=True)
class GdbRegister:
    """One register: gdb's name, its size in bits, and the debugger's name for it if it has one."""

    name: str
    bits: int
    type: str
    feature: str
    known_as: str | None = None

    @property
    def size(self) -> int:
        """Size in bytes in a packet."""
        return self.bits // 8


_CORE, _SEGMENTS = "org.gnu.gdb.i386.core", "org.gnu.gdb.i386.segments"
_GENERAL = ("rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rbp", "rsp", *(f"r{number}" for number in range(8, 16)))
_POINTERS = ("rbp", "rsp")
_SELECTORS = ("cs", "ss", "ds", "es", "fs", "gs")
_X87_CONTROL = ("fctrl", "fstat", "ftag", "fiseg", "fioff", "foseg", "fooff", "fop")


def _registers() -> Iterator[GdbRegister]:
    for name in _GENERAL:
        yield GdbRegister(name, 64, "data_ptr" if name in _POINTERS else "int64", _CORE, name)
    yield GdbRegister("rip", 64, "code_ptr", _CORE, "rip")
    yield GdbRegister("eflags", 32, "i386_eflags", _CORE, "eflags")
    for name in _SELECTORS:
        yield GdbRegister(name, 32, "int32", _CORE)
    for number in range(8):
        yield GdbRegister(f"st{number}", 80, "i387_ext", _CORE)
    for name in _X87_CONTROL:
        yield GdbRegister(name, 32, "int", _CORE)
    for name in ("fs_base", "gs_base"):
        yield GdbRegister(name, 64, "int64", _SEGMENTS, name)


REGISTERS = tuple(_registers())
"""In gdb's order of numbers, which is the order of a g packet."""

_EFLAGS = (
    *(("CF", 0), ("", 1), ("PF", 2), ("AF", 4), ("ZF", 6), ("SF", 7), ("TF", 8), ("IF", 9), ("DF", 10)),
    *(("OF", 11), ("NT", 14), ("RF", 16), ("VM", 17), ("AC", 18), ("VIF", 19), ("VIP", 20), ("ID", 21)),
)


def target_description() -> bytes:
    """The target description of a vCPU."""
    target = ElementTree.Element("target", version="1.0")
    ElementTree.SubElement(target, "architecture").text = "i386:x86-64"
    ElementTree.SubElement(target, "osabi").text = "none"
    for feature in dict.fromkeys(register.feature for register in REGISTERS):
        described = ElementTree.SubElement(target, "feature", name=feature)
        if feature == _CORE:
            flags = ElementTree.SubElement(described, "flags", id="i386_eflags", size="4")
            for name, bit in _EFLAGS:
                ElementTree.SubElement(flags, "field", name=name, start=str(bit), end=str(bit))
        for number, register in enumerate(REGISTERS):
            if register.feature == feature:
                ElementTree.SubElement(
                    described, "reg", name=register.name, bitsize=str(register.bits), type=register.type,
                    regnum=str(number),
                )  # fmt: skip
    head = b'<?xml version="1.0"?>\n<!DOCTYPE target SYSTEM "gdb-target.dtd">\n'
    return head + ElementTree.tostring(target)


def register_hex(number: int, values: Mapping[str, int]) -> str:
    """A register in a packet: its bytes in hex, low ones first, or x for each digit of a register without a value."""
    register = REGISTERS[number]
    value = values.get(register.known_as) if register.known_as is not None else None
    if value is None:
        return "xx" * register.size
    return (value & (1 << register.bits) - 1).to_bytes(register.size, "little").hex()


def all_hex(values: Mapping[str, int]) -> str:
    """All registers, in the order of a g packet."""
    return "".join(register_hex(number, values) for number in range(len(REGISTERS)))
