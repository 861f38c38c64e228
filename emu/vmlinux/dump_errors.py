"""Errors of memory images. ``DumpError`` is their root; each says which file and where in it."""

from emu.vmlinux.errors import VmlinuxError


class DumpError(VmlinuxError):
    """A file that is no memory image that can be opened. ``path`` is the file."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path, self.reason = path, reason


class UnknownFormat(DumpError):
    """Neither an ELF core nor a compressed kdump file."""


class TruncatedDump(DumpError):
    """The file ends before what its headers announce."""

    def __init__(self, path: str, offset: int, size: int) -> None:
        super().__init__(path, f"the file ends at {size:#x}, but its headers announce data up to {offset:#x}")
        self.offset, self.size = offset, size


class CorruptDump(DumpError):
    """A header or page that contradicts itself."""


class OtherArchitecture(DumpError):
    """A memory image of a machine that is not x86_64."""


class MissingLibrary(DumpError):
    """Pages are compressed in a way that needs a library which is not installed."""

    def __init__(self, path: str, compression: str, library: str) -> None:
        super().__init__(path, f"pages are compressed with {compression}: install the Python package {library!r}")
        self.compression, self.library = compression, library


class MissingInformation(DumpError):
    """The image holds no VMCOREINFO, symbols, type information or CPU state that is needed."""


class MissingPage(VmlinuxError):
    """A page of physical memory that the dump does not contain, because it was filtered or cut out.

    ``physical`` is its address; ``virtual`` is the guest address that leads there, where one is known.
    """

    def __init__(self, physical: int, virtual: int | None = None) -> None:
        where = "" if virtual is None else f" (guest address {virtual:#x})"
        super().__init__(f"physical page {physical & ~0xFFF:#x}{where} is not in the memory image")
        self.physical, self.virtual = physical, virtual
