"""Violations: states that a schedule must never reach."""

from emu.errors import EmuError


class Violation(EmuError):
    """A broken invariant. ``kind`` is a short name, which shrinking preserves; the text gives the position."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind, self.text = kind, text
        self.steps = 1
        """Number of steps that the violating action made, including the violating one."""
