"""Recordings of the JIT, read and checked: its input and its output."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trampoline.bpf.errors import BytecodeError, GoldenError
from trampoline.bpf.jit.jit_image import ExtableEntry
from trampoline.bpf.jit.rules import JitRules
from trampoline.tools.golden.fields import Address, Fields, Flag0, Text0, case_fields, read_each

_U32 = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class RecordedReloc:
    """An address in the code: ``kind`` kernel, bpf, map, percpu, const, ..., ``insn`` the mnemonic that contains it."""

    kind: str
    insn: str
    target: Address
    name: Text0


@dataclass(frozen=True, slots=True)
class RecordedPoke:
    """A direct tail call: the map's name and the key."""

    map: str
    key: int
    bypass: int
    target: int


@dataclass(frozen=True, slots=True)
class RecordedFunc:
    """Input and output of the JIT for one function."""

    index: int
    address: int
    insnsi: bytes
    jited: bytes
    stack_depth: int
    tail_call_reachable: Flag0
    exception_cb: Flag0
    exception_boundary: Flag0
    private_stack: int
    uses_arena: bool
    extable: tuple[ExtableEntry, ...]
    pokes: tuple[RecordedPoke, ...]
    relocs: tuple[RecordedReloc, ...]


@dataclass(frozen=True, slots=True)
class JitCase:
    """One line of a JIT recording."""

    id: str
    name: str
    category: str
    run: str
    cmdline: str
    cpu: str
    rules: JitRules
    insns: bytes
    """Instructions as loaded."""
    maps: Mapping[int, str]
    """Names of the case's maps by number."""
    put: tuple[int, int] | None
    """Number of a program map, and the key under which the program was inserted."""
    funcs: tuple[RecordedFunc, ...]
    symbols: Mapping[str, int]
    aux: int
    insn_array: tuple[int, ...]
    boot: Fields | None
    record: Mapping[str, Any]
    """The whole line."""


def read_jit_cases(path: Path) -> Iterator[JitCase]:
    """Every case of a file. Raises GoldenError if the file is damaged or is not a JIT recording."""
    return read_each(path, _case)


def _case(record: dict[str, Any], where: str) -> JitCase:
    f, release = case_fields(record, where)
    loaded = "funcs" in record
    return f.make(
        JitCase,
        name=f.text("case"),
        cpu=f.text("qemu_cpu"),
        rules=release.jit,
        maps={m.number("index"): m.text("name") for m in f.objects("maps")},
        put=_put(f),
        funcs=tuple(map(_func, f.objects("funcs"))) if loaded else (),
        symbols=f.symbols("symbols") if loaded else {},
        aux=f.address("main_aux") if loaded else 0,
        insn_array=tuple(f.maybe("insn_array", list) or ()),
        boot=f.sub("boot") if "boot" in record else None,
        record=record,
    )


def _put(f: Fields) -> tuple[int, int] | None:
    if not f.maybe("put", str) or f.maybe("put_errno", int):
        return None
    found = re.fullmatch(r"(\d+):(\d+)", f.text("put"))
    if found is None:
        raise GoldenError(f"{f.where}: 'put' is {f.text('put')!r}")
    return int(found[1]), int(found[2])


def _func(f: Fields) -> RecordedFunc:
    private = f.maybe_address("priv_stack_ptr") if f.maybe("jits_use_priv_stack", int) else None
    entries = f.objects("extable") if f.maybe("extable", list) else []
    pokes = f.objects("poke") if f.maybe("poke", list) else []
    return f.make(
        RecordedFunc,
        index=f.number("func_idx"),
        address=f.address("addr"),
        private_stack=private or 0,
        uses_arena=bool(f.maybe_address("arena")),
        extable=tuple(
            ExtableEntry(e.number("insn_off"), e.number("fixup") & _U32, e.number("data") & _U32) for e in entries
        ),
        pokes=tuple(
            RecordedPoke(
                p.text("map").removeprefix("map:"),
                p.number("key"),
                p.number("tailcall_bypass_off"),
                p.number("tailcall_target_off"),
            )
            for p in pokes
        ),
        relocs=tuple(reloc.make(RecordedReloc) for reloc in f.objects("relocs")),
    )


def call_immediates(code: bytes) -> Iterator[int]:
    """Immediates of the kernel function calls in rewritten eBPF."""
    at = 0
    while at + 8 <= len(code):
        if code[at] == 0x85 and code[at + 1] >> 4 != 1:
            yield int.from_bytes(code[at + 4 : at + 8], "little", signed=True)
        at += 16 if code[at] == 0x18 else 8
    if at != len(code):
        raise BytecodeError("the last instruction is incomplete", at // 8)
