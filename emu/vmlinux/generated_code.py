"""Code that a kernel made or loaded while it ran, found through the kernel's own lists.

BPF programs and trampolines (``bpf_kallsyms``, kernel/bpf/core.c), kprobes' instruction slots and optimised detours
(``kprobe_insn_slots``, ``kprobe_optinsn_slots``, kernel/kprobes.c), trampolines of ftrace_ops (``ftrace_ops_list``,
kernel/trace/ftrace.c), functions of modules (``modules``, kernel/module/kallsyms.c).
"""

import struct
from collections.abc import Callable, Iterator

from emu.errors import NotMapped
from emu.machine.address_map import PAGE_SIZE
from emu.vmlinux.btf_layout import BtfLayout, UnknownLayout
from emu.vmlinux.code_names import CodeNames, CodeRange
from emu.vmlinux.dump_errors import MissingPage
from emu.vmlinux.kallsyms import Kallsyms
from emu.vmlinux.page_walk import PageTables

_MOST = 1 << 16
"""Entries of a list after which it is taken for a loop."""
_SYMBOL_SIZE = 24
_STT_FUNC, _SHN_UNDEF = 2, 0


def list_entries(memory: PageTables, head: int, offset: int) -> Iterator[int]:
    """Addresses of the structs of a ``list_head`` list, ``offset`` being that of the link in the struct."""
    entry = memory.u64(head)
    for _ in range(_MOST):
        if entry in (head, 0):
            return
        yield entry - offset
        entry = memory.u64(entry)


class GeneratedCode:
    """Generated code that was found (``ranges``), and notes on unreadable lists (``gaps``)."""

    def __init__(self, memory: PageTables, symbols: Kallsyms, layout: BtfLayout) -> None:
        self._memory, self._symbols, self._layout = memory, symbols, layout
        self.ranges: list[CodeRange] = []
        self.gaps: list[str] = []
        for what, find in (
            ("BPF programs and trampolines", self._bpf),
            ("kprobe slots", self._kprobe_slots),
            ("ftrace trampolines", self._ftrace),
            ("modules", self._modules),
        ):
            self._collect(what, find)

    def _collect(self, what: str, find: Callable[[], Iterator[CodeRange]]) -> None:
        try:
            for found in find():
                if found.start < found.end:
                    self.ranges.append(found)
        except (MissingPage, NotMapped, UnknownLayout) as error:
            self.gaps.append(f"{what}: {error}")

    def _bpf(self) -> Iterator[CodeRange]:
        head = self._symbols.get("bpf_kallsyms")
        if head is None:
            return
        layout, memory = self._layout, self._memory
        start, end, name = (layout.offset("bpf_ksym", member) for member in ("start", "end", "name"))
        for entry in list_entries(memory, head, layout.offset("bpf_ksym", "lnode")):
            yield CodeRange(memory.u64(entry + start), memory.u64(entry + end), memory.text(entry + name), "bpf")

    def _kprobe_slots(self) -> Iterator[CodeRange]:
        layout, memory = self._layout, self._memory
        for cache in ("kprobe_insn_slots", "kprobe_optinsn_slots"):
            head = self._symbols.get(cache)
            if head is None:
                continue
            pages = head + layout.offset("kprobe_insn_cache", "pages")
            instructions = layout.offset("kprobe_insn_page", "insns")
            for entry in list_entries(memory, pages, layout.offset("kprobe_insn_page", "list")):
                start = memory.u64(entry + instructions)
                yield CodeRange(start, start + PAGE_SIZE, cache[:-1], "kprobe")

    def _ftrace(self) -> Iterator[CodeRange]:
        first, last = self._symbols.get("ftrace_ops_list"), self._symbols.get("ftrace_list_end")
        if first is None:
            return
        layout, memory = self._layout, self._memory
        function, start, size, following = (
            layout.offset("ftrace_ops", member) for member in ("func", "trampoline", "trampoline_size", "next")
        )
        names = CodeNames(self._symbols, [one for one in self.ranges if one.kind == "bpf"])
        entry = memory.u64(first)
        for _ in range(_MOST):
            if entry in (0, last):
                return
            address = memory.u64(entry + start)
            if address:
                name = f"ftrace_trampoline[{names.describe(memory.u64(entry + function))}]"
                yield CodeRange(address, address + memory.u64(entry + size), name, "ftrace")
            entry = memory.u64(entry + following)

    def _modules(self) -> Iterator[CodeRange]:
        head = self._symbols.get("modules")
        if head is None:
            return
        layout, memory = self._layout, self._memory
        link, table_at = layout.offset("module", "list"), layout.offset("module", "kallsyms")
        members = ("symtab", "num_symtab", "strtab")
        symbols, count, strings = (layout.offset("mod_kallsyms", member) for member in members)
        for module in list_entries(memory, head, link):
            table = memory.u64(module + table_at)
            if not table:
                continue
            entries = memory.read(memory.u64(table + symbols), _SYMBOL_SIZE * memory.u32(table + count))
            names = memory.u64(table + strings)
            for name, info, _other, section, value, size in struct.iter_unpack("<IBBHQQ", entries):
                if info & 15 == _STT_FUNC and section != _SHN_UNDEF and size:
                    yield CodeRange(value, value + size, memory.text(names + name), "module")
