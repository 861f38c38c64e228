"""Entry of a traceable function: the release's bytes before and at a function's symbol."""

from dataclasses import dataclass

from asm.encodings import ENDBR64

SITE_SIZE = 5
"""Bytes of a patch site: one nop5, call or jmp (X86_PATCH_SIZE, MCOUNT_INSN_SIZE)."""


@dataclass(frozen=True, slots=True)
class EntryLayout:
    """Entry of a function built with ``-mfentry``.

    ``endbr``: functions begin with endbr64, so that the site is at +4. ``sealed``: bytes written over the endbr64 of
    functions whose address is never taken (``seal_endbr``). ``padding``: bytes of nops before a function
    (CONFIG_CALL_PADDING).
    """

    endbr: bool
    sealed: bytes = b""
    padding: int = 0

    @property
    def site_offset(self) -> int:
        """Distance in bytes from the symbol to the patch site."""
        return len(ENDBR64) if self.endbr else 0
