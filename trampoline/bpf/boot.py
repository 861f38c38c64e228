"""Boot decisions that emitted code depends on, in the JIT and in trampolines."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Boot:
    """Mitigations that a boot chose for emitted code. Addresses are guest addresses.

    ``return_thunk``: target of every return jump, or None for a plain ret. ``call_depth_offset``: the GS offset of the
    call-depth counter where calls are accounted (retbleed=stuff), or None.
    """

    return_thunk: int | None = None
    call_depth_offset: int | None = None
