"""What a schedule must never show."""

from emu.errors import EmuError


class Violation(EmuError):
    """An invariant was broken. ``kind`` is a short name, which shrinking keeps; the text says what and where."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind, self.text = kind, text
        self.steps = 1
        """Steps that the action made which broke it, that one included."""
