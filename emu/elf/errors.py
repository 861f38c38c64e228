"""Error of reading ELF files."""

from emu.errors import EmuError


class ElfError(EmuError):
    """An ELF file that can't be read: `object_name` is the file, `section` the place (each may be empty), `reason` the
    fault.
    """

    def __init__(self, reason: str, *, section: str = "", object_name: str = "") -> None:
        self.reason = reason
        self.section = section
        self.object_name = object_name
        super().__init__(": ".join(part for part in (object_name, section, reason) if part))
