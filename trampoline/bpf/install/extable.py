"""What is done when a program's load faults: nothing is there, so it reads 0 (``ex_handler_bpf``)."""

from dataclasses import dataclass

from emu.kernel.kernel import Kernel
from emu.kernel.structs import pt_regs
from emu.machine.vcpu import Vcpu
from trampoline.bpf.jit.jit_image import ExtableEntry

_LENGTH, _REGISTER_SHIFT, _REGISTER = 0xFF, 8, 0xFF
_NAMES = {field.offset: name if name[0] == "r" else f"r{name}" for name, field in pt_regs.fields.items()}
"""Registers by their place in pt_regs. A fixup with a place between two clears none (DONT_CLEAR)."""


@dataclass(frozen=True, slots=True)
class _Fixup:
    length: int
    register: str | None


class ExceptionTable:
    """The instructions of all images in a kernel that may fault."""

    def __init__(self, kernel: Kernel) -> None:
        self._fixups: dict[int, _Fixup] = {}
        self.faults = 0
        """How many faults were answered."""
        kernel.machine.on_fault.append(self._fix)

    def __len__(self) -> int:
        return len(self._fixups)

    def add(self, image: int, entries: tuple[ExtableEntry, ...]) -> None:
        """Take in the entries of an image at a guest address."""
        for entry in entries:
            register = _NAMES.get(entry.fixup >> _REGISTER_SHIFT & _REGISTER)
            self._fixups[image + entry.offset] = _Fixup(entry.fixup & _LENGTH, register)

    def remove(self, image: int, entries: tuple[ExtableEntry, ...]) -> None:
        """Take them out again."""
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
