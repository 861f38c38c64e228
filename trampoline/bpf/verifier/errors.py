"""Errors of verification: the kernel's refusal, or a feature that verifier-lite does not model."""

from trampoline.bpf.errors import KernelError, TrampolineError


class VerifierError(KernelError):
    """Refusal by the kernel at load or attach.

    ``errno`` is positive, ``summary`` the decisive line, ``log`` the whole log in the kernel's form, ``slot`` the
    instruction if known, ``where`` the program and its source line, for messages.
    """

    def __init__(self, errno: int, summary: str, slot: int | None = None, log: str = "") -> None:
        super().__init__(errno, summary or "refused")
        self.summary = summary
        self.slot = slot
        self.log = log
        self.where = ""

    def __str__(self) -> str:
        return _placed(self.where, super().__str__())


class Unsupported(TrampolineError):
    """A program needs a feature that verifier-lite does not model: neither accepted nor refused.

    ``feature``: its name, ``where``: the program and source line, for messages.
    """

    def __init__(self, feature: str, slot: int | None = None, log: str = "") -> None:
        super().__init__(f"verifier-lite does not model {feature}")
        self.feature = feature
        self.slot = slot
        self.log = log
        self.where = ""

    def __str__(self) -> str:
        return _placed(self.where, super().__str__())


def _placed(where: str, message: str) -> str:
    return f"{where}: {message}" if where else message
