"""Initialised kernels in the user's cache: memory as a sparse file, and beside it the host's state.

The key is the kernel's file, this code and the CPUs: a change of any of them makes another entry. Pages that are not
zero are stored, so that opening maps the file and reads nothing; a checksum over the pages detects a damaged entry,
which is then made anew.
"""

from __future__ import annotations

import hashlib
import marshal
import os
import shutil
import tempfile
import zlib
from array import array
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from emu.machine.address_map import PAGE_SIZE
from emu.vmlinux.btf_layout import BtfLayout
from emu.vmlinux.kallsyms import Kallsyms, Layout
from emu.vmlinux.unbooted_machine import UnbootedMachine
from emu.vmlinux.unbooted_memory import SIZE

if TYPE_CHECKING:
    from typing import Any

__all__ = ["default_folder", "load", "place_of", "store"]

_MEMORY, _STATE = "memory", "state"


def default_folder() -> Path:
    """``$XDG_CACHE_HOME/tramplab/prepared``."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "tramplab" / "prepared"


def place_of(file: Path, folder: Path, cpus: int, start: str) -> Path:
    """The folder of this kernel's entry, existing or not; ``start``: further values that the state depends on."""
    with open(file, "rb") as content:
        key = hashlib.file_digest(content, "sha256")
    key.update(_code_digest() + f"{cpus} {start}".encode())
    return folder / key.hexdigest()


@cache
def _code_digest() -> bytes:
    here = Path(__file__).parent
    whole = hashlib.sha256()
    for source in sorted(here.rglob("*.py")):
        whole.update(source.read_bytes())
    return whole.digest()


def store(place: Path, machine: UnbootedMachine, results: dict[str, int | str], release: str) -> None:
    """Write an entry; another process sees it whole or not at all. A full disk or a read-only cache leaves none."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=place.parent, prefix=".new-"))
    except OSError:
        return
    try:
        pages = {page: content for page, content in machine.memory.memory.changed_pages().items() if any(content)}
        check = 0
        with open(made / _MEMORY, "wb") as memory:
            for page, content in sorted(pages.items()):
                memory.seek(page * PAGE_SIZE)
                memory.write(content)
                check = zlib.crc32(content, check)
            memory.truncate(SIZE)
        symbols, layout = machine.symbols, machine.symbols.layout
        state = {
            "pages": array("I", sorted(pages)).tobytes(),
            "check": check,
            "names": "\n".join(symbols.names),
            "types": symbols.types,
            "addresses": array("Q", symbols.addresses).tobytes(),
            "layout": tuple(getattr(layout, name) for name in Layout.__slots__),
            "btf": machine.layout.saved(),
            "results": results,
            "release": release,
            "host": machine.host_state(),
        }
        (made / _STATE).write_bytes(marshal.dumps(state))
        os.rename(made, place)
    except OSError:
        shutil.rmtree(made, ignore_errors=True)


def load(place: Path, cpus: int) -> tuple[UnbootedMachine, dict[str, int | str], str] | None:
    """The machine, its boot's results and the release; None without a whole entry (a damaged one is removed)."""
    try:
        raw = (place / _STATE).read_bytes()
        file = os.open(place / _MEMORY, os.O_RDONLY)
    except OSError:
        return None
    try:
        state: dict[str, Any] = marshal.loads(raw)
        pages = array("I")
        pages.frombytes(state["pages"])
        if os.fstat(file).st_size != SIZE or _checksum(file, pages) != state["check"]:
            raise ValueError
        addresses = array("Q")
        addresses.frombytes(state["addresses"])
        symbols = Kallsyms(state["names"].split("\n"), state["types"], addresses.tolist(), Layout(*state["layout"]))
        machine = UnbootedMachine(symbols, BtfLayout.restored(*state["btf"]), file, cpus)
        machine.restore_host_state(state["host"])
        return machine, state["results"], state["release"]
    except (ValueError, EOFError, TypeError, KeyError):
        shutil.rmtree(place, ignore_errors=True)
        return None
    finally:
        os.close(file)


def _checksum(file: int, pages: array[int]) -> int:
    """CRC-32 of the stored pages, read run by run."""
    check, first, count = 0, -1, 0
    for page in (*pages, -1):
        if page == first + count and count:
            count += 1
            continue
        if count:
            check = zlib.crc32(os.pread(file, count * PAGE_SIZE, first * PAGE_SIZE), check)
        first, count = page, 1
    return check
