"""The registers of one engine."""

import ctypes

from unicorn import x86_const

from emu.host import libunicorn
from emu.machine.address_map import ADDRESS_MASK

GENERAL = (
    *("rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rbp", "rsp"),
    *("r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15"),
)
SAVED = (*GENERAL, "rip", "rflags")
"""Registers that a task switch saves and restores, in this order. GS base and CR3 belong to the CPU."""
ARGUMENTS = ("rdi", "rsi", "rdx", "rcx", "r8", "r9")
"""System V argument registers."""

RIP = SAVED.index("rip")
RSP = SAVED.index("rsp")
RAX = SAVED.index("rax")

_IDS: dict[str, int] = {name: getattr(x86_const, f"UC_X86_REG_{name.upper()}") for name in SAVED}


class RegisterBatch:
    """A fixed list of registers, read or written in one call to the engine."""

    def __init__(self, engine: int, names: tuple[str, ...]) -> None:
        self._engine, self._count = engine, len(names)
        self._ids = (ctypes.c_int * len(names))(*(_IDS[name] for name in names))
        self._values = (ctypes.c_uint64 * len(names))()
        base = ctypes.addressof(self._values)
        self._pointers = (ctypes.c_void_p * len(names))(*(base + 8 * index for index in range(len(names))))

    def read(self) -> list[int]:
        """Values of the registers, in the order of their names."""
        libunicorn.reg_read_batch(self._engine, self._ids, self._pointers, self._count)
        return self._values[:]

    def write(self, values: list[int]) -> None:
        """Set all registers of the batch."""
        self._values[:] = values  # type: ignore[assignment]
        libunicorn.reg_write_batch(self._engine, self._ids, self._pointers, self._count)


class _Register:
    """One register as an attribute."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __get__(self, registers: "Registers", owner: type) -> int:
        libunicorn.reg_read(registers.engine, self._number, registers.pointer)
        return registers.cell.value

    def __set__(self, registers: "Registers", value: int) -> None:
        registers.cell.value = value & ADDRESS_MASK
        libunicorn.reg_write(registers.engine, self._number, registers.pointer)


class Registers:
    """Registers of an idle engine: ``regs.rax``, ``regs.rip = ...``; values are taken modulo 2^64."""

    def __init__(self, engine: int) -> None:
        self.engine = engine
        self.cell = ctypes.c_uint64()
        self.pointer = ctypes.addressof(self.cell)
        self._all = RegisterBatch(engine, SAVED)

    rax = _Register(_IDS["rax"])
    rbx = _Register(_IDS["rbx"])
    rcx = _Register(_IDS["rcx"])
    rdx = _Register(_IDS["rdx"])
    rsi = _Register(_IDS["rsi"])
    rdi = _Register(_IDS["rdi"])
    rbp = _Register(_IDS["rbp"])
    rsp = _Register(_IDS["rsp"])
    r8 = _Register(_IDS["r8"])
    r9 = _Register(_IDS["r9"])
    r10 = _Register(_IDS["r10"])
    r11 = _Register(_IDS["r11"])
    r12 = _Register(_IDS["r12"])
    r13 = _Register(_IDS["r13"])
    r14 = _Register(_IDS["r14"])
    r15 = _Register(_IDS["r15"])
    rip = _Register(_IDS["rip"])
    rflags = _Register(_IDS["rflags"])
    gs_base = _Register(x86_const.UC_X86_REG_GS_BASE)
    cr2 = _Register(x86_const.UC_X86_REG_CR2)

    def save(self) -> list[int]:
        """Values of the registers named in ``SAVED``."""
        return self._all.read()

    def load(self, values: list[int]) -> None:
        """Set the registers named in ``SAVED``."""
        self._all.write(values)

    def as_dict(self) -> dict[str, int]:
        """The registers named in ``SAVED``, by name."""
        return dict(zip(SAVED, self._all.read(), strict=True))
