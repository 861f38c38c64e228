"""Exception table of BPF programs: a load from unmapped memory reads 0 (``ex_handler_bpf``)."""

from dataclasses import dataclass

from emu.kernel.kernel import Kernel
from emu.kernel.structs import pt_regs
from emu.machine.vcpu import Vcpu
from trampoline.bpf.jit.jit_image import ExtableEntry

_LENGTH, _REGISTER_SHIFT, _REGISTER = 0xFF, 8, 0xFF
_NAMES = {field.offset: name if name[0] == "r" else f"r{name}" for name, field in pt_regs.fields.items()}
"""Registers by their offset in pt_regs. A fixup whose offset is between two registers clears none (DONT_CLEAR)."""


@dataclass(frozen=True, slots=True)
class _Fixup:
    length: int
    register: str | None


class ExceptionTable:
    """Instructions that may fault, from all images in a kernel."""

    def __init__(self, kernel: Kernel) -> None:
        self._fixups: dict[int, _Fixup] = {}
        self.faults = 0
        """Number of faults handled."""
        kernel.machine.on_fault.append(self._fix)

    def __len__(self) -> int:
        return len(self._fixups)

    def add(self, image: int, entries: tuple[ExtableEntry, ...]) -> None:
        """Add the entries of an image at a guest address."""
        for entry in entries:
            register = _NAMES.get(entry.fixup >> _REGISTER_SHIFT & _REGISTER)
            self._fixups[image + entry.offset] = _Fixup(entry.fixup & _LENGTH, register)

    def remove(self, image: int, entries: tuple[ExtableEntry, ...]) -> None:
        """Remove the entries of an image."""
        for entry in entries:
            del self._fixups[image + entry.offset]

    def _fix(self, vcpu: Vcpu, rip: int) -> bool:
        found = self._fixups.get(rip)
        if found is None:
            return False
        if found.register is not None:
            setattr(vcpu.regs, found.register, 0)
        vcpu.regs.rip = rip + found.length
        self.faults += 1
        return True
