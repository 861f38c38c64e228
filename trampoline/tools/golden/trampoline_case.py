"""One recorded case, read and checked: the generator's input on one side, what the kernel made on the other.

A file has one JSON object a line (optionally gzipped). Addresses are hexadecimal strings. Whatever is missing or of the
wrong kind is a GoldenError that names the file, the line and the field.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trampoline.bpf.boot import Boot
from trampoline.bpf.btf.func_model import FuncArg, FuncModel
from trampoline.bpf.errors import GoldenError
from trampoline.bpf.uapi import ATTACH_WORDS
from trampoline.releases.kernel_release import KernelRelease
from trampoline.tools.golden.fields import Fields, read_each, recorded_release

ATTACH_TYPES = frozenset({*ATTACH_WORDS, "kprobe_multi", "kprobe_session"})
DEFAULT_THUNK = "__x86_return_thunk"
"""x86_return_thunk still points here where returns are plain (X86_FEATURE_RETHUNK off)."""


@dataclass(frozen=True, slots=True)
class ObservedRun:
    """What a program wrote into its map slot; ``count``: how many calls did."""

    count: int
    args: tuple[int, ...]
    ret: int
    func_ip: int
    cookie: int
    arg0_by_helper: int
    ret_by_helper: int
    arg_cnt_by_helper: int
    session_cookie: int
    session_is_return: int


@dataclass(frozen=True, slots=True)
class RecordedProgram:
    """A program of the case. ``attach`` is fentry, fexit, fmod_ret, lsm, fsession, a ``_multi`` form or kprobe_*."""

    name: str
    attach: str
    sleepable: bool
    uses_func_ip: bool
    uses_cookie: bool
    uses_session_cookie: bool
    cookie: int
    retval: int
    slot: int
    refused: int
    """The error code that the kernel gave at load or attach, 0 where it attached."""
    btf_ids: tuple[int, ...]
    cookies: tuple[int, ...]
    prog_type: int
    attach_type: int
    jited_addr: int | None
    jited: bytes
    prog_ptr: int | None
    map_value: int | None
    observed: ObservedRun
    insns: bytes
    """eBPF as loaded, with map 0; empty where it was not recorded."""
    prog_flags: int
    attach_btf_id: int

    @property
    def is_fprobe(self) -> bool:
        """Whether it is attached through fprobe, not through a trampoline."""
        return self.attach.startswith("kprobe")

    def cookie_at(self, btf_id: int) -> int:
        """The cookie that its link has at a target."""
        return self.cookies[self.btf_ids.index(btf_id)] if self.cookies else self.cookie


@dataclass(frozen=True, slots=True)
class SiteStep:
    """The site after one attach or detach; ``after`` is ``-`` at the start."""

    after: str
    site: bytes
    target: int


@dataclass(frozen=True, slots=True)
class RecordedTarget:
    """A traced function."""

    name: str
    addr: int
    btf_id: int
    model: FuncModel
    sealed: bool
    patch_offset: int
    site_before: bytes
    site_after: bytes
    site_detached: bytes | None
    steps: tuple[SiteStep, ...]

    @property
    def is_program(self) -> bool:
        """Whether it is a BPF program."""
        return self.name.startswith("@")

    @property
    def tail_call_reachable(self) -> bool:
        """A BPF program that tail calls can reach clears its counter (xor eax/rax) where others have a nop."""
        after = self.site_before[self.patch_offset + 5 :]
        return self.is_program and after.startswith((b"\x31\xc0", b"\x48\x31\xc0"))


@dataclass(frozen=True, slots=True)
class RecordedImage:
    """A trampoline as read from kernel memory."""

    kind: str
    addr: int
    sym: str
    attached_to: tuple[str, ...]
    code: bytes
    prog_call_order: tuple[str, ...]
    tramp_image: Mapping[str, Any] | None
    size: int | None


@dataclass(frozen=True, slots=True)
class Case:
    """One line of a golden file."""

    id: str
    name: str
    run: str
    status: str
    release: KernelRelease
    boot: Boot
    targets: tuple[RecordedTarget, ...]
    programs: tuple[RecordedProgram, ...]
    images: tuple[RecordedImage, ...]
    symbols: Mapping[str, int]
    triggers: tuple[Mapping[str, Any], ...]

    def program(self, name: str) -> RecordedProgram:
        """The program of that name."""
        for program in self.programs:
            if program.name == name:
                return program
        raise GoldenError(f"{self.id}: no program {name!r}")


def read_cases(path: Path) -> Iterator[Case]:
    """Every case of a golden file. Raises GoldenError where the file is damaged or is none."""
    return read_each(path, _case)


def _case(record: dict[str, Any], where: str) -> Case:
    f = Fields(record, where)
    f = Fields(record, f"{where} ({f.text('id')})")
    symbols: dict[str, int] = {}
    for address, name in f.get("symbols", dict).items():
        try:
            symbols.setdefault(str(name), int(address, 16))
        except ValueError:
            raise GoldenError(f"{f.where}: symbol address {address!r}") from None
    return Case(
        id=f.text("id"),
        name=f.text("case"),
        run=f.text("run"),
        status=f.text("status"),
        release=recorded_release(f),
        boot=_boot(f.sub("boot")),
        targets=tuple(map(_target, f.objects("targets"))),
        programs=tuple(map(_program, f.objects("programs"))),
        images=tuple(map(_image, f.objects("trampolines"))),
        symbols=symbols,
        triggers=tuple(f.get("triggers", list)),
    )


def _boot(f: Fields) -> Boot:
    thunk = f.address("return_thunk") if f.text("return_thunk_sym") != DEFAULT_THUNK else None
    return Boot(return_thunk=thunk, call_depth_offset=f.maybe_address("call_depth_gs_offset"))


def _target(f: Fields) -> RecordedTarget:
    args = tuple(
        FuncArg(
            a.text("name"),
            a.text("type"),
            a.number("size"),
            a.get("signed", bool),
            a.text("kind") in ("STRUCT", "UNION"),
        )
        for a in f.objects("args")
    )
    ret = f.sub("ret")
    steps = tuple(SiteStep(s.text("after"), s.code("site"), s.address("target")) for s in f.objects("steps"))
    detached = f.code("site_detached")
    return RecordedTarget(
        name=f.text("name"),
        addr=f.address("addr"),
        btf_id=f.number("btf_id"),
        model=FuncModel(f.text("name"), args, ret.number("size"), ret.get("signed", bool)),
        sealed=f.get("endbr_sealed", bool),
        patch_offset=f.number("patch_offset"),
        site_before=f.code("site_before"),
        site_after=f.code("site_after"),
        site_detached=detached or None,
        steps=steps,
    )


def _program(f: Fields) -> RecordedProgram:
    if f.text("attach") not in ATTACH_TYPES:
        raise GoldenError(f"{f.where}: 'attach' is {f.text('attach')!r}; there are {', '.join(sorted(ATTACH_TYPES))}")
    multi = f.maybe("multi_btf_ids", list)
    o = f.sub("observed")
    return RecordedProgram(
        name=f.text("name"),
        attach=f.text("attach"),
        sleepable=f.get("sleepable", bool),
        uses_func_ip=f.get("uses_func_ip", bool),
        uses_cookie=f.get("uses_cookie", bool),
        uses_session_cookie=f.get("uses_session_cookie", bool),
        cookie=f.get("cookie", (int, type(None))) or 0,
        retval=f.number("retval"),
        slot=f.number("slot"),
        refused=abs(f.number("load_errno")) or abs(f.number("attach_errno")),
        btf_ids=tuple(multi) if multi is not None else (f.number("attach_btf_id"),),
        cookies=tuple(f.maybe("multi_cookies", list) or ()),
        prog_type=f.number("prog_type"),
        attach_type=f.number("attach_type"),
        jited_addr=f.maybe_address("jited_addr"),
        jited=f.code("jited"),
        prog_ptr=f.maybe_address("prog_ptr"),
        map_value=f.maybe_address("map_value"),
        observed=ObservedRun(
            count=o.number("count"),
            args=o.hexes("args"),
            ret=o.address("ret"),
            func_ip=o.address("func_ip"),
            cookie=o.address("cookie"),
            arg0_by_helper=o.address("arg0_by_helper"),
            ret_by_helper=o.address("ret_by_helper"),
            arg_cnt_by_helper=o.number("arg_cnt_by_helper"),
            session_cookie=o.number("session_cookie"),
            session_is_return=o.number("session_is_return"),
        ),
        insns=f.code("insns"),
        prog_flags=f.maybe("prog_flags", int) or 0,
        attach_btf_id=f.maybe("attach_btf_id", int) or 0,
    )


def _image(f: Fields) -> RecordedImage:
    return RecordedImage(
        kind=f.text("kind"),
        addr=f.address("addr"),
        sym=f.text("sym"),
        attached_to=tuple(f.get("attached_to", list)),
        code=f.code("hex"),
        prog_call_order=tuple(f.get("prog_call_order", list)),
        tramp_image=f.get("tramp_image", (dict, type(None))),
        size=f.maybe("size", int),
    )
