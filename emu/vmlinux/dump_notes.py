"""Notes of memory images: the CPUs' registers as QEMU or the kernel left them, and VMCOREINFO."""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

GENERAL = (
    *("rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rsp", "rbp"),
    *("r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "rip", "rflags"),
)
"""Order of ``QEMUCPUState`` (target/i386/arch_dump.c)."""
_SEGMENTS = ("cs", "ds", "es", "fs", "gs", "ss", "ldt", "tr", "gdt", "idt")
_PRSTATUS_REGISTERS = (
    *("r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8"),
    *("rax", "rcx", "rdx", "rsi", "rdi", "orig_rax", "rip", "cs", "rflags", "rsp", "ss"),
)
"""Order of ``struct user_regs_struct`` up to ss (arch/x86/include/asm/user_64.h)."""
_PRSTATUS_OFFSET = 112
_NT_PRSTATUS = 1


@dataclass(frozen=True, slots=True)
class Note:
    """One ELF note."""

    name: str
    kind: int
    content: bytes


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment register, or GDTR or IDTR: guest address and limit in bytes."""

    selector: int
    limit: int
    base: int


@dataclass(frozen=True, slots=True)
class CpuState:
    """One CPU as the dump has it. ``control``: CR0 to CR4; empty as ``segments`` is where the kernel dumped itself."""

    registers: Mapping[str, int]
    segments: Mapping[str, Segment] = field(default_factory=dict)
    control: tuple[int, ...] = ()
    kernel_gs_base: int = 0

    @property
    def in_user_mode(self) -> bool:
        """True if the CPU ran a user program rather than the kernel."""
        cs = self.segments["cs"].selector if self.segments else self.registers.get("cs", 0)
        return cs & 3 == 3

    @property
    def per_cpu_base(self) -> int:
        """Guest address of the CPU's per-CPU area, 0 where the dump does not tell."""
        if not self.segments:
            return 0
        return self.kernel_gs_base if self.in_user_mode else self.segments["gs"].base


def parse_notes(data: bytes) -> Iterator[Note]:
    """The notes of one PT_NOTE segment; stops where the rest is too short for what it announces."""
    at = 0
    while at + 12 <= len(data):
        name_size, size, kind = struct.unpack_from("<III", data, at)
        name_at = at + 12
        content_at = name_at + (name_size + 3 & ~3)
        if content_at + size > len(data):
            return
        name = data[name_at : name_at + name_size].rstrip(b"\0").decode("latin1")
        yield Note(name, kind, data[content_at : content_at + size])
        at = content_at + (size + 3 & ~3)


def cpu_states(notes: list[Note]) -> list[CpuState]:
    """The CPUs in order: QEMU's notes where there are some, else the kernel's own (``struct elf_prstatus``)."""
    qemu = [note.content for note in notes if note.name == "QEMU" and len(note.content) >= 440 - 8]
    if qemu:
        return [_qemu_cpu(content) for content in qemu]
    kernel = [note.content for note in notes if note.name == "CORE" and note.kind == _NT_PRSTATUS]
    size = _PRSTATUS_OFFSET + 8 * len(_PRSTATUS_REGISTERS)
    return [
        CpuState(dict(zip(_PRSTATUS_REGISTERS, struct.unpack_from("<21Q", content, _PRSTATUS_OFFSET), strict=True)))
        for content in kernel
        if len(content) >= size
    ]


def _qemu_cpu(content: bytes) -> CpuState:
    registers = dict(zip(GENERAL, struct.unpack_from("<18Q", content, 8), strict=True))
    at = 8 + 8 * len(GENERAL)
    segments = {}
    for name in _SEGMENTS:
        selector, limit, _flags, _pad, base = struct.unpack_from("<IIIIQ", content, at)
        segments[name] = Segment(selector, limit, base)
        at += 24
    control = struct.unpack_from("<5Q", content, at)
    gs_base = struct.unpack_from("<Q", content, at + 40)[0] if len(content) >= at + 48 else 0
    return CpuState(registers, segments, control, gs_base)


class VmcoreInfo:
    """The text in which a kernel describes itself to dump tools (Documentation/admin-guide/kdump/vmcoreinfo.rst)."""

    def __init__(self, text: bytes) -> None:
        lines = text.split(b"\0")[0].decode("latin1").split("\n")
        self.values = dict(line.split("=", 1) for line in lines if "=" in line)

    def symbol(self, name: str) -> int | None:
        """Address of a symbol, with KASLR's offset."""
        value = self.values.get(f"SYMBOL({name})")
        return None if value is None else int(value, 16)

    def number(self, name: str) -> int | None:
        """A number."""
        value = self.values.get(f"NUMBER({name})")
        return None if value is None else int(value, 0)

    @property
    def release(self) -> str:
        """The kernel's release, as uname gives it."""
        return self.values.get("OSRELEASE", "")

    @property
    def kaslr_offset(self) -> int:
        """Distance of the kernel's addresses from the linked ones, in bytes."""
        return int(self.values.get("KERNELOFFSET", "0"), 16)

    @property
    def is_usable(self) -> bool:
        """True if it names the page tables and the kernel's physical address."""
        tables = self.symbol("init_top_pgt") or self.symbol("swapper_pg_dir")
        return tables is not None and "NUMBER(phys_base)" in self.values
