"""Errors of serving gdb."""

from emu.errors import EmuError


class GdbError(EmuError):
    """A request that can't be served: an address, a packet, a register. gdb, or the user, sees the text."""

    @property
    def reply(self) -> str:
        """Reply to the packet."""
        return f"E.{self}"


class NoMemory(GdbError):
    """Guest memory that can't be read or written. gdb itself names the address."""

    @property
    def reply(self) -> str:
        return "E14"
