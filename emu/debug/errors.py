"""What a debugger refuses."""

from emu.errors import EmuError


class DebugError(EmuError):
    """A request that makes no sense where the kernel stands; nothing was changed."""
