"""Errors of the debugger."""

from emu.errors import EmuError


class DebugError(EmuError):
    """A request that is not possible in the kernel's current state; nothing was changed."""
