"""The kernel's table of BUG and WARN sites (lib/bug.c, arch/x86/include/asm/bug.h)."""

from collections.abc import Iterator
from dataclasses import dataclass

from emu.errors import NotMapped
from emu.vmlinux.btf_layout import BtfLayout
from emu.vmlinux.dump_errors import MissingPage
from emu.vmlinux.kallsyms import Kallsyms
from emu.vmlinux.page_walk import PageTables

_WARNING, _ONCE, _DONE = 1, 2, 4
"""``BUGFLAG_*`` (include/linux/bug.h)."""


@dataclass(frozen=True, slots=True)
class BugSite:
    """One entry: ``place`` is "file:line" as far as the kernel keeps it, ``text`` the format of a 7.x WARN."""

    address: int
    is_warning: bool
    place: str
    text: str


class BugTable:
    """Entries by the address of their ud2 or ud1; only those that are asked for are read."""

    def __init__(self, memory: PageTables, symbols: Kallsyms, layout: BtfLayout) -> None:
        self._memory, self._layout = memory, layout
        self._has = layout.has("bug_entry", "bug_addr_disp")
        self._start, self._end = symbols.get("__start___bug_table"), symbols.get("__stop___bug_table")
        self._at: dict[int, int] | None = None

    def find(self, address: int) -> BugSite | None:
        """The site at an address; None where there is none, or the table is not in the dump."""
        if not self._has:
            return None
        if self._at is None:
            self._at = dict(self._entries())
        entry = self._at.get(address)
        if entry is None:
            return None
        layout = self._layout
        flags = self._memory.u16(entry + layout.offset("bug_entry", "flags"))
        place = self._pointed(entry, "file_disp")
        if place and layout.has("bug_entry", "line"):
            place += f":{self._memory.u16(entry + layout.offset('bug_entry', 'line'))}"
        return BugSite(address, bool(flags & _WARNING), place, self._pointed(entry, "format_disp"))

    def skips(self, site: BugSite) -> bool:
        """True for a WARN_ONCE that was reported already; marks it as reported."""
        entry = (self._at or {}).get(site.address)
        if entry is None:
            return False
        at = entry + self._layout.offset("bug_entry", "flags")
        flags = self._memory.u16(at)
        if flags & _ONCE and not flags & _DONE:
            self._memory.write(at, (flags | _DONE).to_bytes(2, "little"))
        return bool(flags & _ONCE and flags & _DONE)

    def _entries(self) -> Iterator[tuple[int, int]]:
        if self._start is None or self._end is None:
            return
        size, at = self._layout.size("bug_entry"), self._layout.offset("bug_entry", "bug_addr_disp")
        data = self._memory.read_sparse(self._start, self._end - self._start)
        for offset in range(0, len(data) - size + 1, size):
            place = offset + at
            entry = self._start + offset
            yield entry + at + int.from_bytes(data[place : place + 4], "little", signed=True), entry

    def _pointed(self, entry: int, member: str) -> str:
        if not self._layout.has("bug_entry", member):
            return ""
        at = entry + self._layout.offset("bug_entry", member)
        try:
            displacement = self._memory.s32(at)
            return self._memory.text(at + displacement) if displacement else ""
        except (NotMapped, MissingPage):
            return ""
