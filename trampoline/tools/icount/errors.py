"""Errors of baseline files."""

from pathlib import Path

from trampoline.bpf.errors import TrampolineError


class BaselineError(TrampolineError):
    """A baseline that is missing, damaged or of another command. ``line``: at fault, from 1, or None."""

    def __init__(self, path: Path, reason: str, line: int | None = None) -> None:
        super().__init__(f"{path}{'' if line is None else f':{line}'}: {reason}")
        self.path = path
        self.reason = reason
        self.line = line
