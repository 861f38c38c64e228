"""What can be wrong with a baseline itself."""

from pathlib import Path

from trampoline.bpf.errors import TrampolineError


class BaselineError(TrampolineError):
    """A baseline that is missing, damaged or another's. ``line`` counts from 1; None where no line is to blame."""

    def __init__(self, path: Path, reason: str, line: int | None = None) -> None:
        super().__init__(f"{path}{'' if line is None else f':{line}'}: {reason}")
        self.path = path
        self.reason = reason
        self.line = line
