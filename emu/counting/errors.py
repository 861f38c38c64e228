"""Errors of counting."""

from emu.errors import EmuError


class CountingError(EmuError):
    """Counting is impossible or was used out of order. `address` is the guest address, if there is one."""

    def __init__(self, address: int | None, what: str) -> None:
        super().__init__(what if address is None else f"{address:#x}: {what}")
        self.address = address
