import gzip
import lzma
import struct
from collections.abc import Callable
from pathlib import Path

import lz4.block
import pytest
import zstandard

from emu.vmlinux.errors import ImageError, NoBtf, NoConfiguration, NoKallsyms
from emu.vmlinux.kernel_image import KernelImage
from kallsyms_writer import kallsyms_tables

TEXT, RODATA = 0xFFFFFFFF81000000, 0xFFFFFFFF81100000
BANNER = b"Linux version 9.9.9-test (builder) #1\0"
SYMBOLS = [(f"function_{number}", TEXT + 16 * number, "t") for number in range(600)]
SETUP_SECTORS = 3


def elf(content: bytes, machine: int = 62, address: int = RODATA) -> bytes:
    header = (
        b"\x7fELF"
        + bytes([2, 1, 1])
        + bytes(9)
        + struct.pack("<HHIQQQIHHHHHH", 2, machine, 1, 0, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    )
    program = struct.pack("<IIQQQQQQ", 1, 4, 0x1000, address, 0, len(content), len(content) + 0x1000, 0x1000)
    return (header + program).ljust(0x1000, b"\0") + content


def vmlinux(symbols: list[tuple[str, int, str]] | None = None, btf: bytes = b"") -> bytes:
    front = BANNER.ljust(0x1000, b"\0") + btf
    return elf(kallsyms_tables(symbols or SYMBOLS, RODATA, before=front))


def bz_image(packed: bytes, size: int) -> bytes:
    payload = packed + struct.pack("<I", size)
    setup = bytearray(512 * (SETUP_SECTORS + 1))
    setup[0x1F1] = SETUP_SECTORS
    setup[0x202:0x206] = b"HdrS"
    setup[0x248:0x250] = struct.pack("<II", 0x40, len(payload))
    return bytes(setup) + bytes(0x40) + payload + bytes(100)


def lz4_legacy(content: bytes) -> bytes:
    blocks = [content[at : at + (8 << 20)] for at in range(0, len(content), 8 << 20)]
    packed = [lz4.block.compress(block, store_size=False) for block in blocks]
    return struct.pack("<I", 0x184C2102) + b"".join(struct.pack("<I", len(block)) + block for block in packed)


PACKERS = {
    "gzip": lambda raw: gzip.compress(raw)[:-4],  # the size at the end of gzip is the one that the build appends
    "xz": lzma.compress,
    "lzma": lambda raw: lzma.compress(raw, format=lzma.FORMAT_ALONE),
    "zstd": zstandard.ZstdCompressor().compress,
    "lz4": lz4_legacy,
}


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def write(content: bytes, name: str = "vmlinuz") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    return write


@pytest.mark.parametrize("compression", PACKERS)
def test_each_compression_gives_the_same_kernel(compression, write):
    raw = vmlinux()
    image = KernelImage.open(write(bz_image(PACKERS[compression](raw), len(raw))))
    assert (image.compression, image.elf == raw, image.release) == (compression, True, "9.9.9-test")
    assert image.kallsyms["function_7"] == TEXT + 7 * 16


def test_a_vmlinux_is_taken_as_it_is(write):
    image = KernelImage.open(write(vmlinux(), "vmlinux"))
    assert image.read(RODATA, 13) == b"Linux version"
    assert image.read(image.end - 8, 8) == bytes(8)
    with pytest.raises(ImageError, match="no segment"):
        image.read(image.end, 1)


@pytest.mark.parametrize("compression", PACKERS)
def test_a_truncated_file_says_so(compression, write):
    raw = vmlinux()
    whole = bz_image(PACKERS[compression](raw), len(raw))
    with pytest.raises(ImageError, match="truncated"):
        KernelImage.open(write(whole[: len(whole) // 2]))
    with pytest.raises(ImageError, match=r"truncated|damaged"):
        KernelImage.open(write(bz_image(PACKERS[compression](raw)[:-40], len(raw))))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "neither"),
        (b"MZ" + bytes(4000), "neither"),
        (bytes(0x38) + b"ARM\x64" + bytes(1000), "arm64"),
        (elf(b"x", machine=183), "AArch64"),
        (elf(b"x", machine=3), "i386"),
        (elf(b"x", address=0x400000), "no vmlinux"),
        (vmlinux()[:3000], "truncated"),
        (bz_image(b"\x01\x02\x03\x04" * 10, 100), "unknown compression"),
        (bz_image(b"\x89LZO" * 10, 100), "lzo is not supported"),
        (bz_image(gzip.compress(b"no kernel")[:-4], 9), "no ELF"),
    ],
)
def test_what_is_no_x86_64_kernel_is_refused(content, message, write):
    with pytest.raises(ImageError, match=message):
        KernelImage.open(write(content))


def test_a_missing_file_and_a_folder_without_a_kernel(tmp_path):
    with pytest.raises(ImageError, match="No such file"):
        KernelImage.open(tmp_path / "absent")
    with pytest.raises(ImageError, match="no kernel in this folder"):
        KernelImage.open(tmp_path)


def test_an_unpacked_package_with_its_configuration(write, tmp_path):
    write(vmlinux(), "boot/vmlinuz-9.9.9-test")
    write(b"CONFIG_BPF=y\n# CONFIG_X is not set\nCONFIG_HZ=250\n", "boot/config-9.9.9-test")
    image = KernelImage.open(tmp_path)
    assert image.configuration == {"CONFIG_BPF": "y", "CONFIG_X": "n", "CONFIG_HZ": "250"}
    write(vmlinux(), "boot/vmlinuz-9.9.8-test")
    with pytest.raises(ImageError, match="several kernels"):
        KernelImage.open(tmp_path)


def test_the_configuration_in_the_image_comes_first(write):
    inside = b"IKCFG_ST" + gzip.compress(b"CONFIG_BPF=m\n") + b"IKCFG_ED"
    write(b"CONFIG_BPF=y\n", "config")
    assert KernelImage.open(write(elf(inside))).configuration == {"CONFIG_BPF": "m"}
    with pytest.raises(NoConfiguration, match="IKCONFIG"):
        _ = KernelImage.open(write(elf(b"IKCFG_ST\x1f\x8bIKCFG_ED"))).configuration


def test_no_kallsyms_no_btf_no_configuration(write):
    image = KernelImage.open(write(elf(bytes(5000)), "vmlinux"))
    with pytest.raises(NoKallsyms):
        _ = image.kallsyms
    with pytest.raises(ImageError, match="banner"):
        _ = image.release
    with pytest.raises(NoConfiguration):
        _ = image.configuration
    with pytest.raises(NoBtf):
        _ = KernelImage.open(write(vmlinux(), "vmlinux")).btf


def test_btf_is_what_lies_between_its_symbols(write):
    ends = [("__start_BTF", RODATA + 0x1000, "R"), ("__stop_BTF", RODATA + 0x1004, "R")]
    assert KernelImage.open(write(vmlinux([*SYMBOLS, *ends], b"\x9f\xeb\x01\0"))).btf == b"\x9f\xeb\x01\0"
