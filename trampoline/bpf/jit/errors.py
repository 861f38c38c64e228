"""Error of the JIT."""

from trampoline.bpf.errors import TrampolineError


class JitError(TrampolineError):
    """A function that the kernel's JIT would refuse, or an invalid instruction.

    ``slot``: the instruction's position in its function, in slots of 8 bytes; None if it has none.
    """

    def __init__(self, reason: str, slot: int | None = None) -> None:
        super().__init__(reason if slot is None else f"slot {slot}: {reason}")
        self.reason = reason
        self.slot = slot
