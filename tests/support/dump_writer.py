"""Memory images written byte by byte: ELF cores, kdump files, page tables, QEMU's notes."""

import lzma
import struct
import zlib

PAGE = 4096


def note(name, kind, content):
    text = name.encode() + b"\0"
    padded = text.ljust(len(text) + 3 & ~3, b"\0")
    return struct.pack("<III", len(text), len(content), kind) + padded + content.ljust(len(content) + 3 & ~3, b"\0")


def vmcoreinfo(**values):
    lines = {"OSRELEASE": "6.99.0-test", "PAGESIZE": "4096", **values}
    return "".join(f"{name}={value}\n" for name, value in lines.items()).encode()


_REGISTERS = (
    *("rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rsp", "rbp"),
    *("r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "rip", "rflags"),
)
_SEGMENTS = ("cs", "ds", "es", "fs", "gs", "ss", "ldt", "tr", "gdt", "idt")


def qemu_cpu(registers=None, segments=None, control=(0, 0, 0, 0, 0), kernel_gs_base=0):
    """QEMUCPUState: version, size, 18 registers, 10 segments, CR0 to CR4, the kernel's GS base."""
    data = struct.pack("<II", 1, 440) + struct.pack("<18Q", *((registers or {}).get(name, 0) for name in _REGISTERS))
    for name in _SEGMENTS:
        selector, limit, base = (segments or {}).get(name, (0, 0, 0))
        data += struct.pack("<IIIIQ", selector, limit, 0, 0, base)
    return data + struct.pack("<5QQ", *control, kernel_gs_base)


def elf_core(segments, notes=b"", *, machine=62, kind=4, bits=2):
    """``segments``: (physical address, bytes)."""
    count = len(segments) + bool(notes)
    offset = 64 + 56 * count
    headers, body = b"", b""
    for address, data, part in [*((0, notes, 4) for _ in range(bool(notes))), *((a, d, 1) for a, d in segments)]:
        headers += struct.pack("<IIQQQQQQ", part, 7, offset + len(body), 0, address, len(data), len(data), 1)
        body += data
    ident = b"\x7fELF" + bytes([bits, 1, 1]) + bytes(9)
    header = ident + struct.pack("<HHIQQQIHHHHHH", kind, machine, 1, 0, 64, 0, 0, 64, 56, count, 0, 0, 0)
    return header + headers + body


def kdump(pages, *, notes=b"", info=b"", compress=zlib.compress, flags=1, machine="x86_64", block=PAGE):
    """``pages``: page number to its 4096 bytes; a page that ``compress`` does not shrink is stored as it is."""
    names = [b"Linux", b"host", b"6.99", b"#1", machine.encode(), b""]
    utsname = b"".join(name.ljust(65, b"\0") for name in names)
    bitmap = bytearray(PAGE)
    for number in pages:
        bitmap[number >> 3] |= 1 << (number & 7)
    geometry = struct.pack("<iiiII", 0, block, 1, 2, max(pages, default=0) + 1)
    header = (b"KDUMP   " + struct.pack("<i", 6) + utsname + bytes(6) + bytes(16) + geometry).ljust(PAGE, b"\0")
    at = 4 * PAGE
    descriptors_size = 24 * len(pages)
    notes_at = at + descriptors_size
    info_at = notes_at + len(notes)
    sub = struct.pack("<QiiQQQQQQQQQQQ", 0, 31, 0, 0, 0, info_at, len(info), notes_at, len(notes), 0, 0, 0, 0, 0)
    at = info_at + len(info)
    descriptors, data = b"", b""
    for number in sorted(pages):
        packed, kind = compress(pages[number]), flags
        if len(packed) >= PAGE:
            packed, kind = pages[number], 0
        descriptors += struct.pack("<QIIQ", at + len(data), len(packed), kind, 0)
        data += packed
    return header + sub.ljust(PAGE, b"\0") + bytes(bitmap) * 2 + descriptors + notes + info + data


def flattened(data, piece=10_000):
    """A kdump file as it comes through a pipe, its pieces in another order than in the file."""
    pieces = [(at, data[at : at + piece]) for at in range(0, len(data), piece)]
    out = b"makedumpfile".ljust(16, b"\0") + struct.pack(">qq", 1, 1)
    out = out.ljust(PAGE, b"\0")
    for at, content in reversed(pieces):
        out += struct.pack(">qq", at, len(content)) + content
    return out + struct.pack(">qq", -1, -1)


def xz(data):
    return lzma.compress(data, preset=0)


class Tables:
    """Page tables in physical memory that begins at 0: ``ram`` is changed in place."""

    def __init__(self, ram, root, free, levels=4):
        self.ram, self.root, self.free, self.levels = ram, root, free, levels

    def map(self, virtual, physical, flags=3, *, huge=False):
        """One page, of 2 MiB where ``huge``."""
        shifts = (48, 39, 30, 21, 12)[5 - self.levels :]
        table = self.root
        for shift in shifts:
            at = table + 8 * (virtual >> shift & 511)
            if shift == (21 if huge else 12):
                struct.pack_into("<Q", self.ram, at, physical | flags | (0x80 if huge else 0))
                return
            (entry,) = struct.unpack_from("<Q", self.ram, at)
            if not entry:
                entry = self.free | 3
                self.free += PAGE
                struct.pack_into("<Q", self.ram, at, entry)
            table = entry & 0x000FFFFFFFFFF000
