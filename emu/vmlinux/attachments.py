"""Attached programs in a kernel's memory: every BPF link, its program, its functions.

The list is the kernel's own (``link_idr``, kernel/bpf/syscall.c). Where the dump lacks its pages the BPF trampolines
still tell which function they belong to, by their key, and which programs they call.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from capstone import CS_ARCH_X86, CS_MODE_64, Cs

from emu.errors import NotMapped
from emu.machine.address_map import ADDRESS_MASK
from emu.vmlinux.btf_layout import BtfLayout, UnknownLayout
from emu.vmlinux.code_names import CodeNames
from emu.vmlinux.dump_errors import MissingPage
from emu.vmlinux.kallsyms import Kallsyms
from emu.vmlinux.page_walk import PageTables
from emu.vmlinux.run import ENDBR

_UNREADABLE = (MissingPage, NotMapped, UnknownLayout)
_SLOT_BITS = 6
_WAYS = {
    "BPF_TRACE_RAW_TP": "tp_btf", "BPF_MODIFY_RETURN": "fmod_ret", "BPF_LSM_MAC": "lsm",
    "BPF_PERF_EVENT": "perf_event",
}  # fmt: skip
_TRAMPOLINE = "bpf_trampoline_"
_KEY_IS_BTF = 0x80000000
"""Bit of a trampoline's key: the target is a function of a BTF object (``bpf_trampoline_compute_key``)."""
_VMLINUX_BTF = 1
_MOST_FUNCTIONS = 1 << 17


@dataclass(frozen=True, slots=True)
class Program:
    """A BPF program: id, name, tag in hex, address and bytes of its compiled code."""

    id: int
    name: str
    tag: str
    address: int
    size: int


@dataclass(frozen=True, slots=True)
class Attachment:
    """A program on one function, or on something that is no function: ``target`` names it.

    ``way``: fentry, fexit, fmod_ret, lsm, fsession, tp_btf, raw_tp, tracepoint, kprobe, kretprobe, kprobe-multi,
    kretprobe-multi, kprobe-session, fentry-multi and so on, else the link's type. ``address``: of the probed
    instruction, None where there is none. ``trampoline``: where the instruction there leads, None where it is a trap
    or not patched. ``link``: id, None where the dump lacks the list of links.
    """

    target: str
    way: str
    program: Program
    address: int | None = None
    trampoline: int | None = None
    link: int | None = None

    @property
    def function(self) -> str | None:
        """The function that is probed, None where the target is no function."""
        return None if self.address is None else self.target.partition("+")[0]


class Attachments:
    """Reads a kernel's links. ``gaps`` says what could not be read, and why."""

    def __init__(self, memory: PageTables, symbols: Kallsyms, layout: BtfLayout, code: CodeNames) -> None:
        self._memory, self._symbols, self._layout, self._code = memory, symbols, layout, code
        self.gaps: list[str] = []

    def all(self) -> list[Attachment]:
        """Every attachment, by link id; of trampolines alone where the links can't be read."""
        found: list[Attachment] = []
        try:
            links = list(self._entries(self._symbols["link_idr"]))
        except (*_UNREADABLE, KeyError) as error:
            self.gaps.append(f"links: {error}")
            return list(self._from_trampolines())
        for link in links:
            try:
                found += self._of_link(link)
            except _UNREADABLE as error:
                self.gaps.append(f"link at {link:#x}: {error}")
        return found

    # Links ----------------------------------------------------------------------------------------------------------

    def _word(self, address: int, struct_name: str, member: str) -> int:
        return self._memory.u64(address + self._layout.offset(struct_name, member))

    def _half(self, address: int, struct_name: str, member: str) -> int:
        return self._memory.u32(address + self._layout.offset(struct_name, member))

    def _entries(self, idr: int) -> Iterator[int]:
        """Pointers in an IDR, by rising id (lib/radix-tree.c, lib/xarray.c)."""
        head = (
            self._word(idr, "idr", "idr_rt")
            if not self._layout.has("xarray", "xa_head")
            else self._memory.u64(idr + self._layout.offset("idr", "idr_rt") + self._layout.offset("xarray", "xa_head"))
        )
        yield from self._walk(head)

    def _walk(self, entry: int) -> Iterator[int]:
        if entry & 3 == 2 and entry > 4096:
            slots = (entry & ~3) + self._layout.offset("xa_node", "slots")
            for (slot,) in struct.iter_unpack("<Q", self._memory.read(slots, 8 << _SLOT_BITS)):
                if slot:
                    yield from self._walk(slot)
        elif entry and not entry & 3:
            yield entry

    @cached_property
    def _link_types(self) -> dict[int, str]:
        return {value: name for name, value in self._layout.enumerators("bpf_link_type").items()}

    @cached_property
    def _attach_types(self) -> dict[int, str]:
        return {value: name for name, value in self._layout.enumerators("bpf_attach_type").items()}

    def _of_link(self, link: int) -> Iterator[Attachment]:
        number = self._half(link, "bpf_link", "id")
        kind = self._link_types.get(self._half(link, "bpf_link", "type"), "")
        prog = self._word(link, "bpf_link", "prog")
        if not prog:
            return
        program = self._program(prog)
        expected = self._attach_types.get(self._half(prog, "bpf_prog", "expected_attach_type"), "")
        if kind == "BPF_LINK_TYPE_TRACING":
            trampoline = self._word(link, "bpf_tracing_link", "trampoline")
            yield self._on_trampoline(trampoline, _way(expected), program, number)
        elif kind == "BPF_LINK_TYPE_TRACING_MULTI":
            nodes = link + self._layout.offset("bpf_tracing_multi_link", "nodes")
            size = self._layout.size("bpf_tracing_multi_node")
            for index in range(min(self._half(link, "bpf_tracing_multi_link", "nodes_cnt"), _MOST_FUNCTIONS)):
                trampoline = self._word(nodes + size * index, "bpf_tracing_multi_node", "trampoline")
                yield self._on_trampoline(trampoline, _way(expected), program, number)
        elif kind == "BPF_LINK_TYPE_RAW_TRACEPOINT":
            point = self._word(self._word(link, "bpf_raw_tp_link", "btp"), "bpf_raw_event_map", "tp")
            name = self._memory.text(self._word(point, "tracepoint", "name"))
            yield Attachment(name, "tp_btf" if expected == "BPF_TRACE_RAW_TP" else "raw_tp", program, link=number)
        elif kind == "BPF_LINK_TYPE_KPROBE_MULTI":
            yield from self._kprobe_multi(link, expected, program, number)
        elif kind == "BPF_LINK_TYPE_PERF_EVENT":
            yield self._perf_event(link, program, number)
        else:
            name = kind.removeprefix("BPF_LINK_TYPE_").lower().replace("_", "-")
            yield Attachment(_way(expected), name, program, link=number)

    def _on_trampoline(self, trampoline: int, way: str, program: Program, link: int) -> Attachment:
        address = self._word(trampoline, "bpf_trampoline", "func.addr")
        return self._on_function(address, way, program, link)

    def _on_function(self, address: int, way: str, program: Program, link: int | None) -> Attachment:
        return Attachment(self._code.describe(address), way, program, address, self._detour(address), link)

    def _kprobe_multi(self, link: int, expected: str, program: Program, number: int) -> Iterator[Attachment]:
        probe = link + self._layout.offset("bpf_kprobe_multi_link", "fp")
        if expected == "BPF_TRACE_KPROBE_SESSION":
            way = "kprobe-session"
        else:
            way = "kprobe-multi" if self._word(probe, "fprobe", "entry_handler") else "kretprobe-multi"
        count = min(self._half(link, "bpf_kprobe_multi_link", "cnt"), _MOST_FUNCTIONS)
        addresses = self._memory.read(self._word(link, "bpf_kprobe_multi_link", "addrs"), 8 * count)
        for (address,) in struct.iter_unpack("<Q", addresses):
            yield self._on_function(address, way, program, number)

    def _perf_event(self, link: int, program: Program, number: int) -> Attachment:
        event = self._word(self._word(link, "bpf_perf_link", "perf_file"), "file", "private_data")
        call = self._word(event, "perf_event", "tp_event")
        if not call:
            return Attachment("", "perf_event", program, link=number)
        kinds = self._half(call, "trace_event_call", "flags")
        if kinds & self._layout.enumerator("TRACE_EVENT_FL_TRACEPOINT"):
            name = self._memory.text(self._word(self._word(call, "trace_event_call", "tp"), "tracepoint", "name"))
            return Attachment(name, "tracepoint", program, link=number)
        if not kinds & self._layout.enumerator("TRACE_EVENT_FL_KPROBE"):
            name = self._memory.text(self._word(call, "trace_event_call", "name"))
            return Attachment(name, "perf_event", program, link=number)
        owner = call - self._layout.offset("trace_probe_event", "call")
        probe = self._word(owner, "trace_probe_event", "probes") - self._layout.offset("trace_probe", "list")
        probe += self._layout.offset("trace_kprobe", "rp") - self._layout.offset("trace_kprobe", "tp")
        address = self._word(probe, "kretprobe", "kp.addr")
        way = "kretprobe" if self._word(probe, "kretprobe", "handler") else "kprobe"
        return self._on_function(address, way, program, number)

    def _program(self, prog: int) -> Program:
        layout, memory = self._layout, self._memory
        aux = self._word(prog, "bpf_prog", "aux")
        tag = memory.read(prog + layout.offset("bpf_prog", "tag"), 8).hex()
        name = memory.text(aux + layout.offset("bpf_prog_aux", "name"), 16)
        address = self._word(prog, "bpf_prog", "bpf_func")
        return Program(
            self._half(aux, "bpf_prog_aux", "id"), name, tag, address, self._half(prog, "bpf_prog", "jited_len")
        )

    def _detour(self, address: int) -> int | None:
        """Target of the call or jump at a probed instruction."""
        try:
            code = self._memory.read(address, 16)
        except _UNREADABLE:
            return None
        at = 4 if code[:4] in ENDBR else 0
        if code[at] not in (0xE8, 0xE9):
            return None
        return address + at + 5 + int.from_bytes(code[at + 1 : at + 5], "little", signed=True) & ADDRESS_MASK

    # Trampolines ----------------------------------------------------------------------------------------------------

    def _from_trampolines(self) -> Iterator[Attachment]:
        decoder = Cs(CS_ARCH_X86, CS_MODE_64)
        for image in self._code.ranges:
            key = image.name.removeprefix(_TRAMPOLINE)
            if image.kind != "bpf" or key == image.name or not key.isdigit():
                continue
            target, number = "", int(key)
            if number >> 32 == _VMLINUX_BTF and number & _KEY_IS_BTF:
                target = self._layout.function_name(number & _KEY_IS_BTF - 1) or ""
            address = self._symbols.get(target)
            code = self._memory.read_sparse(image.start, image.end - image.start)
            for _address, _size, mnemonic, operand in decoder.disasm_lite(code, image.start):
                called = self._code.range_at(int(operand, 16)) if mnemonic == "call" and operand[:2] == "0x" else None
                if called is not None and called.name.startswith("bpf_prog_"):
                    tag, _, name = called.name.removeprefix("bpf_prog_").partition("_")
                    program = Program(0, name, tag, called.start, called.end - called.start)
                    yield Attachment(target, "trampoline", program, address, image.start)


def _way(attach_type: str) -> str:
    """A way in, from the name of its ``enum bpf_attach_type``."""
    short = _WAYS.get(attach_type)
    return short or attach_type.removeprefix("BPF_").removeprefix("TRACE_").lower().replace("_", "-")
