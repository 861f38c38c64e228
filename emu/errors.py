"""Errors of the machine. ``EmuError`` is the root of this package's errors."""

import errno
from collections.abc import Mapping
from typing import Literal

Access = Literal["read", "write", "fetch"]

_REPORTED = (
    ("rax", "rbx", "rcx", "rdx"),
    ("rsi", "rdi", "rbp", "rsp"),
    ("r8", "r9", "r10", "r11"),
    ("r12", "r13", "r14", "r15"),
    ("rip", "rflags"),
)


class EmuError(Exception):
    """Root of the errors of ``emu``."""


class MachineError(EmuError):
    """A request that the machine can't fulfil; nothing was changed."""


class NotMapped(MachineError):
    """Unmapped guest memory. ``address`` is the first missing byte."""

    def __init__(self, address: int) -> None:
        super().__init__(f"nothing is mapped at {address:#x}")
        self.address = address


class TextWriteError(MachineError):
    """A write to executable memory other than by ``Machine.write_text`` or ``Machine.load``."""

    def __init__(self, address: int) -> None:
        super().__init__(f"{address:#x} is text: patch it with write_text")
        self.address = address


class OutOfMemory(MachineError):
    """No free frames are left. ``errno`` is ENOMEM."""

    errno = errno.ENOMEM

    def __init__(self, wanted: int, free: int) -> None:
        super().__init__(f"{wanted} frames of guest RAM wanted, {free} free")
        self.wanted, self.free = wanted, free


class GuestFault(EmuError):
    """A fault of the guest that its kernel would not survive.

    ``kind`` is the exception in words ("page fault", "general protection", "invalid opcode", "unhandled int3", ...);
    ``address`` and ``access`` are those of a page fault; ``line`` is symbol+offset of ``rip`` and the listing's line.
    ``note`` adds details on the address, for instance a freed image's name.
    """

    def __init__(
        self,
        kind: str,
        *,
        rip: int,
        registers: Mapping[str, int],
        vcpu: int = 0,
        address: int | None = None,
        access: Access | None = None,
        line: str | None = None,
        note: str | None = None,
    ) -> None:
        self.kind, self.rip, self.vcpu, self.address, self.access = kind, rip, vcpu, address, access
        self.registers, self.line, self.note = dict(registers), line, note
        super().__init__(self._text())

    @property
    def headline(self) -> str:
        """One line: the fault, its position, and the address accessed."""
        parts = [self.kind]
        if self.address is not None:
            what = {"read": "reading", "write": "writing", "fetch": "fetching from"}.get(self.access or "", "at")
            parts.append(f"{what} {self.address:#x}")
        parts.append(f"at rip {self.rip:#x}")
        if self.line:
            parts.append(f"({self.line})")
        parts.append(f"on vcpu {self.vcpu}")
        return " ".join(parts) + (f": {self.note}" if self.note else "")

    def _text(self) -> str:
        lines = [self.headline]
        for row in _REPORTED:
            known = [f"{name:>6} {self.registers[name]:016x}" for name in row if name in self.registers]
            if known:
                lines.append("  ".join(known))
        return "\n".join(lines)


class GuestTimeout(GuestFault):
    """The guest exceeded a limit: ``max_instructions``, or the host time of a run."""
