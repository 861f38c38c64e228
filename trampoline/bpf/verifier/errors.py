"""Why a program is not accepted: the kernel's own answer, or that verifier-lite does not model what it needs."""

from trampoline.bpf.errors import KernelError, TrampolineError


class VerifierError(KernelError):
    """What the kernel would refuse at load or attach.

    ``errno`` is positive, ``summary`` the decisive line, ``log`` the whole log in the manner of the kernel's, ``slot``
    the instruction where it is known, ``where`` the program and its source line, for people.
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

    ``feature`` says which, ``where`` in which program and line, for people.
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
