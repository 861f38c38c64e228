"""What serving gdb refuses."""

from emu.errors import EmuError


class GdbError(EmuError):
    """A request that can't be served: an address, a packet, a register. The text is what gdb, or the user, is told."""

    @property
    def reply(self) -> str:
        """What is answered to a packet."""
        return f"E.{self}"


class NoMemory(GdbError):
    """Guest memory that can't be read or written. gdb says itself which."""

    @property
    def reply(self) -> str:
        return "E14"
