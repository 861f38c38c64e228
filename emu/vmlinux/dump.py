"""Opening a memory image of any format."""

import os
from dataclasses import dataclass

from emu.vmlinux.dump_errors import DumpError, UnknownFormat
from emu.vmlinux.dump_notes import CpuState, Note, VmcoreInfo, cpu_states
from emu.vmlinux.elf_core import ELF_MAGIC, XZ_MAGIC, ElfCore, unpack_xz
from emu.vmlinux.kdump import FLATTENED_MAGIC, KDUMP_MAGIC, Kdump
from emu.vmlinux.physical_memory import PhysicalMemory

_INFO_SIZE = 8192


@dataclass(frozen=True, slots=True)
class Dump:
    """A memory image: physical memory, the CPUs' registers, and what the kernel says about itself.

    ``info`` is None for a kernel without VMCOREINFO (CONFIG_VMCORE_INFO); ``info_from`` is "note" or "search".
    """

    path: str
    format: str
    memory: PhysicalMemory
    cpus: tuple[CpuState, ...]
    info: VmcoreInfo | None
    info_from: str


def open_dump(path: str | os.PathLike[str]) -> Dump:
    """Open an ELF core (``.xz`` too) or a compressed kdump file. Errors of ``dump_errors``, OSError."""
    path = os.fspath(path)
    file = os.open(path, os.O_RDONLY)
    try:
        magic = os.pread(file, 12, 0)
        packed = magic.startswith(XZ_MAGIC)
        if packed:
            os.close(file)
            file = -1
            file = unpack_xz(path)
            magic = os.pread(file, 12, 0)
        opened: ElfCore | Kdump
        if magic.startswith(ELF_MAGIC):
            opened, kind = ElfCore(path, file), "ELF core"
        elif magic.startswith((KDUMP_MAGIC, FLATTENED_MAGIC)):
            opened = Kdump(path, file)
            kind = "kdump, flattened" if magic.startswith(FLATTENED_MAGIC) else "kdump"
        else:
            raise UnknownFormat(path, f"neither an ELF core nor a kdump file: it begins with {magic[:8].hex(' ')}")
    finally:
        if file >= 0:
            os.close(file)
    info = _info_note(opened.notes)
    source = "note"
    if info is None:
        info, source = find_vmcoreinfo(opened.memory), "search"
    kind += " (xz)" if packed else ""
    return Dump(path, kind, opened.memory, tuple(cpu_states(opened.notes)), info, source if info else "")


def _info_note(notes: list[Note]) -> VmcoreInfo | None:
    for note in notes:
        if note.name == "VMCOREINFO":
            info = VmcoreInfo(note.content)
            if info.is_usable:
                return info
    return None


def find_vmcoreinfo(memory: PhysicalMemory) -> VmcoreInfo | None:
    """The page that the kernel keeps for dump tools (kernel/vmcore_info.c), where no note holds a copy of it."""
    for address in memory.find(b"OSRELEASE="):
        size = _INFO_SIZE
        while size and not memory.has(address + size - 1):
            size -= 4096
        info = VmcoreInfo(memory.read(address, max(size, 4096 - (address & 4095))))
        if info.is_usable:
            return info
    return None


__all__ = ["Dump", "DumpError", "find_vmcoreinfo", "open_dump"]
