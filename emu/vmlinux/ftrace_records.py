"""The functions that a kernel's ftrace can patch: its records (``struct dyn_ftrace``, kernel/trace/ftrace.c)."""

import struct

from emu.vmlinux.btf_layout import BtfLayout
from emu.vmlinux.errors import NoSymbol
from emu.vmlinux.kallsyms import Kallsyms
from emu.vmlinux.page_walk import PageTables

_MOST_PAGES = 1 << 16
_ENABLED = 1 << 31
"""``FTRACE_FL_ENABLED``: the site is patched."""


def ftrace_records(memory: PageTables, symbols: Kallsyms, layout: BtfLayout) -> dict[int, bool]:
    """Guest address of each site, and whether it is patched now, by walking ``ftrace_pages_start``.

    Raises NoSymbol for a kernel without dynamic ftrace, MissingPage where a dump lacks the records.
    """
    if "ftrace_pages_start" not in symbols:
        raise NoSymbol("ftrace_pages_start")
    following, records, used = (layout.offset("ftrace_page", member) for member in ("next", "records", "index"))
    address, flags = layout.offset("dyn_ftrace", "ip"), layout.offset("dyn_ftrace", "flags")
    size = layout.size("dyn_ftrace")
    found: dict[int, bool] = {}
    page = memory.u64(symbols["ftrace_pages_start"])
    for _ in range(_MOST_PAGES):
        if not page:
            break
        content = memory.read(memory.u64(page + records), size * memory.u32(page + used))
        for at in range(0, len(content), size):
            (site,) = struct.unpack_from("<Q", content, at + address)
            found[site] = bool(struct.unpack_from("<Q", content, at + flags)[0] & _ENABLED)
        page = memory.u64(page + following)
    return found
