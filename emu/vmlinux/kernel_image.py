"""A kernel's file (``vmlinuz``, ``vmlinux``, an unpacked package's folder), as segments and configuration.

The boot protocol's header says where the compressed payload lies (Documentation/arch/x86/boot.rst); the payload is an
ELF without symbols, whose segments are linked at the addresses where the kernel runs without KASLR.
"""

import gzip
import hashlib
import lzma
import re
import struct
import zlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from emu.vmlinux.errors import ImageError, NoBtf, NoConfiguration
from emu.vmlinux.kallsyms import Kallsyms

__all__ = ["KernelImage", "Segment", "payload"]

MAX_FILE = 1 << 30
"""Bytes at most of a file, packed or not; a kernel with debug information can have 800 MiB."""

_MAGICS = (
    (b"\x1f\x8b\x08", "gzip"),
    (b"\xfd7zXZ\0", "xz"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"\x02\x21\x4c\x18", "lz4"),
    (b"\x5d\0\0", "lzma"),
    (b"BZh", "bzip2"),
    (b"\x89LZO", "lzo"),
)
_LZ4_LEGACY = 0x184C2102
_LZ4_BLOCK = 8 << 20
_SETUP_SECTS, _BOOT_MAGIC, _KERNEL_VERSION, _PAYLOAD = 0x1F1, 0x202, 0x20E, 0x248
_EM_X86_64 = 62
_MACHINES = {
    3: "i386",
    8: "MIPS",
    20: "PowerPC",
    21: "PowerPC64",
    22: "S390",
    40: "Arm",
    183: "AArch64",
    243: "RISC-V",
    258: "LoongArch",
}
_PT_LOAD = 1
_CONFIG_START, _CONFIG_END = b"IKCFG_ST", b"IKCFG_ED"
_CONFIG_LINE = re.compile(r"^(?:(CONFIG_\w+)=(.*)|# (CONFIG_\w+) is not set)$", re.MULTILINE)
_BANNER = re.compile(rb"Linux version (\S+) ")


@dataclass(frozen=True, slots=True)
class Segment:
    """A ``PT_LOAD``: guest address, the file's bytes, and the size in memory in bytes (the rest is zero)."""

    address: int
    content: memoryview
    size: int


class KernelImage:
    """A kernel as its file has it: nothing is relocated, initialised or patched."""

    def __init__(self, elf: bytes, origin: str, configuration: str | None = None, compression: str = "none") -> None:
        self.elf = elf
        self.origin = origin
        self.compression = compression
        self._configuration = configuration
        self.segments = _segments(elf, origin)

    @classmethod
    def open(cls, path: str | Path) -> "KernelImage":
        """Read a ``vmlinuz``, a ``vmlinux`` or a folder with one (an unpacked package, a build tree).

        Raises :class:`ImageError`: nothing there, several kernels, truncated, another architecture or format, or a
        decompressor that is not installed.
        """
        file = kernel_file(Path(path))
        try:
            if file.stat().st_size > MAX_FILE:
                raise ImageError(f"{file}: more than {MAX_FILE >> 20} MiB, no kernel")
            raw = file.read_bytes()
        except OSError as error:
            raise ImageError(f"{file}: {error.strerror}") from None
        elf, compression = payload(raw, str(file))
        beside = _configuration_beside(file)
        return cls(elf, str(file), beside, compression)

    def read(self, address: int, size: int) -> bytes:
        """Bytes of the file at guest address ``address``; what a segment has beyond its file bytes is zero."""
        for segment in self.segments:
            offset = address - segment.address
            if offset >= 0 and offset + size <= segment.size:
                return bytes(segment.content[offset : offset + size]).ljust(size, b"\0")
        raise ImageError(f"{self.origin}: no segment holds {size} bytes at {address:#x}")

    @property
    def start(self) -> int:
        """Lowest guest address of the kernel's text and data (a per-CPU segment linked at 0 does not count)."""
        return min(segment.address for segment in self.segments if segment.address >> 63)

    @property
    def end(self) -> int:
        """First guest address after all segments, .bss and .brk included."""
        return max(segment.address + segment.size for segment in self.segments)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the unpacked file: the key of what is prepared from it."""
        return hashlib.sha256(self.elf).hexdigest()

    @cached_property
    def kallsyms(self) -> Kallsyms:
        """The symbols, from the image's tables. Raises :class:`emu.vmlinux.errors.NoKallsyms`."""
        largest = max((s for s in self.segments if s.address >> 63), key=lambda segment: len(segment.content))
        return Kallsyms.find(largest.content, largest.address)

    @cached_property
    def btf(self) -> bytes:
        """The raw BTF (``CONFIG_DEBUG_INFO_BTF``). Raises :class:`NoBtf`."""
        first, last = self.kallsyms.get("__start_BTF"), self.kallsyms.get("__stop_BTF")
        if first is None or last is None or last <= first:
            raise NoBtf(f"{self.origin}: no BTF in this image (CONFIG_DEBUG_INFO_BTF)")
        return self.read(first, last - first)

    @cached_property
    def release(self) -> str:
        """``uname -r``, from ``linux_banner``."""
        found = _BANNER.search(self.elf)
        if found is None:
            raise ImageError(f"{self.origin}: no Linux banner in this image")
        return found[1].decode("ascii", "replace")

    @cached_property
    def configuration(self) -> dict[str, str]:
        """``CONFIG_*`` to its value (``n`` for what is not set), from IKCONFIG, else from the file beside the image.

        Raises :class:`NoConfiguration`.
        """
        return self.configuration_in(self.elf, self._configuration, self.origin)

    @staticmethod
    def configuration_in(content: bytes, beside: str | None, origin: str) -> dict[str, str]:
        """The same, from IKCONFIG in ``content``, else from the text ``beside``. Raises :class:`NoConfiguration`."""
        first = content.find(_CONFIG_START)
        text = beside
        if first >= 0:
            try:
                text = gzip.decompress(content[first + 8 : content.find(_CONFIG_END, first)]).decode()
            except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
                raise NoConfiguration(f"{origin}: IKCONFIG can't be read: {error}") from None
        if text is None:
            raise NoConfiguration(f"{origin}: no IKCONFIG in it and no config-* beside it")
        return {on or off: value if on else "n" for on, value, off in _CONFIG_LINE.findall(text)}


def kernel_file(path: Path) -> Path:
    """The one kernel that a path names: itself, or the one in a package's or build tree's folder."""
    if not path.is_dir():
        return path
    patterns = (
        "vmlinuz",
        "vmlinuz-*",
        "boot/vmlinuz-*",
        "lib/modules/*/vmlinuz",
        "usr/lib/modules/*/vmlinuz",
        "arch/x86/boot/bzImage",
        "vmlinux",
    )
    for pattern in patterns:
        found = sorted(file for file in path.glob(pattern) if file.is_file())
        if len(found) > 1:
            raise ImageError(f"{path}: several kernels, name one: {', '.join(str(file) for file in found)}")
        if found:
            return found[0]
    raise ImageError(f"{path}: no kernel in this folder ({', '.join(patterns)})")


def payload(raw: bytes, origin: str) -> tuple[bytes, str]:
    """The ELF in a kernel's file, and the name of its compression. ``origin`` names the file in errors."""
    if raw[:4] == b"\x7fELF":
        return raw, "none"
    if raw[0x38:0x3C] == b"ARM\x64" or raw[4:8] == b"zimg":
        raise ImageError(f"{origin}: an arm64 or EFI zboot image; only x86_64 kernels run here")
    if raw[_BOOT_MAGIC : _BOOT_MAGIC + 4] != b"HdrS":
        raise ImageError(f"{origin}: neither a bzImage nor an ELF file")
    setup = ((raw[_SETUP_SECTS] or 4) + 1) * 512
    offset, length = struct.unpack_from("<II", raw, _PAYLOAD)
    packed = raw[setup + offset : setup + offset + length]
    if len(packed) < length or length < 16:
        raise ImageError(f"{origin}: truncated: {len(packed)} of {length} bytes of the payload are there")
    name = next((name for magic, name in _MAGICS if packed.startswith(magic)), None)
    if name is None:
        raise ImageError(f"{origin}: unknown compression, the payload begins with {packed[:6].hex()}")
    try:
        elf = _unpack(packed, name, origin)
    except (lzma.LZMAError, zlib.error, EOFError, ValueError) as error:
        raise ImageError(f"{origin}: the {name} payload is damaged: {error}") from None
    # The build appends the size to what its tools write; gzip's own trailer says the same.
    stated = struct.unpack_from("<I", packed, length - 4)[0]
    if len(elf) & 0xFFFFFFFF != stated:
        raise ImageError(f"{origin}: truncated: {len(elf)} bytes came out of the payload, {stated} were to come")
    return elf, name


def _unpack(packed: bytes, name: str, origin: str) -> bytes:
    match name:
        case "gzip":
            return zlib.decompressobj(31).decompress(packed)
        case "xz":
            return lzma.LZMADecompressor().decompress(packed)
        case "lzma":
            return lzma.LZMADecompressor(format=lzma.FORMAT_ALONE).decompress(packed)
        case "bzip2":
            import bz2

            return bz2.BZ2Decompressor().decompress(packed)
        case "zstd":
            try:
                import zstandard
            except ImportError:
                raise _missing(origin, "zstd", "zstandard") from None
            try:
                return zstandard.ZstdDecompressor().decompressobj().decompress(packed)
            except zstandard.ZstdError as error:
                raise ValueError(error) from None
        case "lz4":
            return _lz4_legacy(packed, origin)
    raise ImageError(f"{origin}: {name} is not supported; extract-vmlinux of the kernel's scripts unpacks it")


def _missing(origin: str, compression: str, package: str) -> ImageError:
    return ImageError(f"{origin}: packed with {compression}: install {package} (pip install 'tramplab[kernels]')")


def _lz4_legacy(packed: bytes, origin: str) -> bytes:
    """``lz4 -l``: a magic, then sizes and blocks of 8 MiB unpacked (lib/decompress_unlz4.c)."""
    try:
        import lz4.block
    except ImportError:
        raise _missing(origin, "lz4", "lz4") from None
    blocks, position = [], 0
    while position + 4 <= len(packed):
        (size,) = struct.unpack_from("<I", packed, position)
        position += 4
        if size == _LZ4_LEGACY:
            continue
        if position + size > len(packed) or not size:
            break  # the size that the build appends
        try:
            block = lz4.block.decompress(packed[position : position + size], uncompressed_size=_LZ4_BLOCK)
        except lz4.block.LZ4BlockError as error:
            raise ValueError(error) from None
        blocks.append(block)
        position += size
    return b"".join(blocks)


def _segments(elf: bytes, origin: str) -> tuple[Segment, ...]:
    if len(elf) < 64 or elf[:4] != b"\x7fELF":
        raise ImageError(f"{origin}: what was unpacked is no ELF file")
    machine = struct.unpack_from("<H", elf, 18)[0]
    if elf[4] != 2 or machine != _EM_X86_64:
        name = _MACHINES.get(machine, f"machine {machine}")
        raise ImageError(f"{origin}: built for {name}; only x86_64 kernels run here")
    table, entry_size, count = *struct.unpack_from("<Q", elf, 32), *struct.unpack_from("<HH", elf, 54)
    if table + entry_size * count > len(elf) or entry_size < 56:
        raise ImageError(f"{origin}: truncated: the program headers lie outside the file")
    whole, found = memoryview(elf), []
    for index in range(count):
        kind, _, offset, address, _, in_file, size, _ = struct.unpack_from("<IIQQQQQQ", elf, table + index * entry_size)
        if kind != _PT_LOAD:
            continue
        if offset + in_file > len(elf):
            raise ImageError(f"{origin}: truncated: the segment at {address:#x} ends after the file")
        found.append(Segment(address, whole[offset : offset + in_file], max(size, in_file)))
    if not any(segment.address >> 63 for segment in found):
        raise ImageError(f"{origin}: no segment at kernel addresses: no vmlinux")
    return tuple(found)


def _configuration_beside(file: Path) -> str | None:
    """``config-RELEASE`` beside ``vmlinuz-RELEASE``, or ``config`` or ``.config`` beside a file without a release."""
    release = file.name.partition("-")[2]
    names = [f"config-{release}"] if release else []
    folders = [file.parent, file.parents[2]] if file.name == "bzImage" and len(file.parents) > 3 else [file.parent]
    for folder in folders:
        for name in (*names, "config", ".config"):
            try:
                return (folder / name).read_text()
            except (OSError, UnicodeDecodeError):
                continue
    return None
