"""Why a program is not accepted: the kernel's own answer, or that verifier-lite does not model what it needs."""

from trampoline.errors import KernelError, TrampolineError


class VerifierError(KernelError):
    """What the kernel would refuse at load or attach.

    ``errno`` is positive, ``summary`` the decisive line, ``log`` the whole log in the manner of the kernel's, ``slot``
    the instruction where it is known.
    """

    def __init__(self, errno: int, summary: str, slot: int | None = None, log: str = "") -> None:
        super().__init__(errno, summary or "refused")
        self.summary = summary
        self.slot = slot
        self.log = log


class Unsupported(TrampolineError):
    """A program needs a feature that verifier-lite does not model: neither accepted nor refused.

    ``feature`` says which.
    """

    def __init__(self, feature: str, slot: int | None = None, log: str = "") -> None:
        super().__init__(f"verifier-lite does not model {feature}")
        self.feature = feature
        self.slot = slot
        self.log = log
