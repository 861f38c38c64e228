"""Recordings of verdicts, read and checked: load and attach requests, and the kernel's answers."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import Any

from trampoline.bpf.errors import GoldenError
from trampoline.bpf.isa.insn import LD_IMM64, Imm64, Insn
from trampoline.bpf.program import MapSpec
from trampoline.bpf.uapi import MapType
from trampoline.bpf.verifier.attach_requests import (
    KprobeMulti,
    LinkCreate,
    PerfKprobe,
    PerfTracepoint,
    RawTracepointOpen,
    Request,
)
from trampoline.bpf.verifier.state.env import Capabilities
from trampoline.releases.kernel_release import KernelRelease
from trampoline.tools.golden.fields import Fields, Number0, Text0, case_fields, read_each

VERDICTS = ("load_refused", "loaded", "attach_refused", "attached")
CAPABILITIES = {
    0: Capabilities(),
    1: Capabilities(bpf=False, perfmon=False, net_admin=False),
    2: Capabilities(perfmon=False),
}
"""Values of ``caps_dropped``: none, all, CAP_PERFMON (and CAP_SYS_ADMIN, which implies it)."""

_SLOT = Struct("<BBhi")


@dataclass(frozen=True, slots=True)
class VerdictCase:
    """One line of a verdict recording."""

    id: str
    name: str
    category: str
    release: KernelRelease
    verdict: str
    errno: int
    """Error code of the refusal; 0 without one."""
    message: Text0
    log: Text0
    prog_type: int
    attach_type: int
    attach_btf_id: int
    flags: int
    license: Text0
    capabilities: Capabilities | None
    """None if the value of ``caps_dropped`` is unknown."""
    caps_dropped: int
    insns: tuple[Insn, ...]
    bad_slot: int | None
    """Slot of an LD_IMM64 without a valid second slot, at which instructions end."""
    maps: tuple[MapSpec, ...]
    request: Request | None
    """None if nothing is attached, or ``attach_mode`` is unknown."""
    attach_mode: str
    log_level: Number0
    insn_cnt: int | None
    """Number of instructions in the request, if it differs from that of ``insns``."""
    target_program: str
    """Name of the target program, one of those that earlier cases have kept."""
    kept_as: str
    """Name under which the program stays loaded, as a target of later cases."""
    holds: bool
    """True if the link stays attached."""

    @property
    def place(self) -> int | None:
        """For cases that fill a function with links (``limit/tramp-07-fe``): the number of earlier attempts."""
        found = re.search(r"-(\d+)-", self.name)
        return int(found[1]) if self.holds and found else None


def read_verdicts(path: Path) -> Iterator[VerdictCase]:
    """Every case of a file. Raises GoldenError with file, line and field if it is damaged or of another kind."""
    return read_each(path, _case)


def _case(record: dict[str, Any], where: str) -> VerdictCase:
    f, release = case_fields(record, where)
    if f.text("verdict") not in VERDICTS:
        raise GoldenError(f"{f.where}: 'verdict' is {f.text('verdict')!r}, not one of {', '.join(VERDICTS)}")
    dropped = int(f.get("caps_dropped", (int, bool)))
    mode = f.maybe("attach_mode", str)
    extra = f.sub("extra")
    insns, bad_slot = _instructions(f.code("insns"), f.where)
    return f.make(
        VerdictCase,
        name=f.text("case"),
        release=release,
        errno=abs(f.maybe("load_errno", int) or 0) or abs(f.maybe("attach_errno", int) or 0),
        flags=f.number("prog_flags"),
        capabilities=CAPABILITIES.get(dropped),
        caps_dropped=dropped,
        insns=insns,
        bad_slot=bad_slot,
        maps=_maps(f.objects("maps"), insns, is_raw=bool(extra.maybe("rawmap", int))),
        request=None if mode is None else _request(mode),
        attach_mode=mode or "",
        insn_cnt=extra.maybe("cnt", int),
        target_program=extra.maybe("tgt", str) or "",
        kept_as=extra.maybe("keep", str) or "",
        holds=bool(extra.maybe("hold", int)),
    )


def _instructions(code: bytes, where: str) -> tuple[tuple[Insn, ...], int | None]:
    """Instructions, including invalid ones; and the slot of an invalid LD_IMM64."""
    if len(code) % _SLOT.size:
        raise GoldenError(f"{where}: 'insns' has {len(code)} bytes, which is not a multiple of {_SLOT.size}")
    insns: list[Insn] = []
    slots = list(_SLOT.iter_unpack(code))
    slot = 0
    while slot < len(slots):
        opcode, registers, off, imm = slots[slot]
        if opcode == LD_IMM64:
            if slot + 1 == len(slots) or any(slots[slot + 1][:3]):
                return tuple(insns), slot
            imm = (slots[slot + 1][3] & 0xFFFFFFFF) << 32 | imm & 0xFFFFFFFF
        insns.append(Insn(opcode, registers & 15, registers >> 4, off, imm))
        slot += insns[-1].slots
    return tuple(insns), None


def _maps(recorded: list[Fields], insns: tuple[Insn, ...], *, is_raw: bool) -> tuple[MapSpec, ...]:
    """Maps by number, with gaps for missing ones. ``is_raw``: the numbers are the loader's file descriptors, of which 0
    to 2 are open files other than maps.
    """
    none = MapSpec("", MapType.UNSPEC, 0, 0, 0)
    if is_raw:
        return (none,) * 3
    found: dict[int, MapSpec] = {}
    inner: Mapping[int, Fields] = {m.number("index"): m for m in recorded}
    for m in recorded:
        found[m.number("index")] = _map(m, inner)
    used = [insn.imm & 0xFFFFFFFF for insn in insns if insn.slots == 2 and insn.src in (Imm64.MAP_FD, Imm64.MAP_VALUE)]
    last = max(found, default=-1)
    return tuple(found.get(index, none) for index in range(last + 1)) if used or found else ()


def _map(m: Fields, recorded: Mapping[int, Fields]) -> MapSpec:
    inner = m.maybe("inner", int)
    return MapSpec(
        name=m.text("name"),
        type=_map_type(m),
        key_size=m.maybe("key", int) or 0,
        value_size=m.maybe("val", int) or 0,
        max_entries=m.maybe("max", int) or 0,
        flags=m.maybe("flags", int) or 0,
        inner=_map(recorded[inner], {}) if inner in recorded else _INNER if inner is not None else None,
        key_type=m.maybe("bk", int) or 0,
        value_type=m.maybe("bv", int) or 0,
    )


def _map_type(m: Fields) -> MapType:
    try:
        return MapType(m.number("type"))
    except ValueError as error:
        raise GoldenError(f"{m.where}: 'type': {error}") from None


_INNER = MapSpec("inner", MapType.ARRAY, 4, 16, 8)
"""An inner map that the recording only identifies by its number."""


def _request(mode: str) -> Request | None:
    kind, _, name = mode.partition(":")
    symbol, _, offset = name.partition("+")
    match kind:
        case "l":
            return LinkCreate()
        case "o":
            return RawTracepointOpen()
        case "n":
            return RawTracepointOpen(name)
        case "p":
            system, _, event = name.partition("/")
            return PerfTracepoint(system, event)
        case "k" | "r" if not offset or offset.isdecimal():
            return PerfKprobe(symbol, int(offset or 0), retprobe=kind == "r")
        case "m":
            return KprobeMulti(tuple(name.split(",")))
    return None
