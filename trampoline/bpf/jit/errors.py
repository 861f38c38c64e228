"""What cannot be compiled."""

from trampoline.bpf.errors import TrampolineError


class JitError(TrampolineError):
    """A function that the kernel's JIT would refuse, or an instruction that is none.

    ``slot`` is the instruction's place in its function, counted in 8 bytes; None where it has none.
    """

    def __init__(self, reason: str, slot: int | None = None) -> None:
        super().__init__(reason if slot is None else f"slot {slot}: {reason}")
        self.reason = reason
        self.slot = slot
