"""Recorded trampoline cases, read and checked: the generator's input and the kernel's output.

A file has one JSON object per line (optionally gzipped). Addresses are hexadecimal strings. A missing field, or one of
the wrong type, raises GoldenError with the file, the line and the field.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from trampoline.bpf.boot import Boot
from trampoline.bpf.btf.func_model import FuncArg, FuncModel
from trampoline.bpf.errors import GoldenError
from trampoline.bpf.uapi import ATTACH_WORDS
from trampoline.releases.kernel_release import KernelRelease
from trampoline.tools.golden.fields import (
    Address,
    Fields,
    MaybeAddress,
    Number0,
    Numbers,
    Texts,
    case_fields,
    read_each,
)

ATTACH_TYPES = frozenset({*ATTACH_WORDS, "kprobe_multi", "kprobe_session"})
DEFAULT_THUNK = "__x86_return_thunk"
"""Value of x86_return_thunk if returns are plain (X86_FEATURE_RETHUNK off)."""


@dataclass(frozen=True, slots=True)
class ObservedRun:
    """Values that a program wrote into its map slot; ``count``: number of calls that wrote."""

    count: int
    args: Numbers
    ret: Address
    func_ip: Address
    cookie: Address
    arg0_by_helper: Address
    ret_by_helper: Address
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
    cookie: Number0
    retval: int
    slot: int
    refused: int
    """Error code of load or attach; 0 on success."""
    btf_ids: tuple[int, ...]
    cookies: tuple[int, ...]
    prog_type: int
    attach_type: int
    jited_addr: MaybeAddress
    jited: bytes
    prog_ptr: MaybeAddress
    map_value: MaybeAddress
    observed: ObservedRun
    insns: bytes
    """eBPF as loaded, with map 0; empty if it was not recorded."""
    prog_flags: Number0
    attach_btf_id: Number0

    @property
    def is_fprobe(self) -> bool:
        """True if it is attached through fprobe instead of a trampoline."""
        return self.attach.startswith("kprobe")

    def cookie_at(self, btf_id: int) -> int:
        """The cookie of its link at a target."""
        return self.cookies[self.btf_ids.index(btf_id)] if self.cookies else self.cookie


@dataclass(frozen=True, slots=True)
class SiteStep:
    """The site after one attach or detach; ``after`` is ``-`` at the start."""

    after: str
    site: bytes
    target: Address


@dataclass(frozen=True, slots=True)
class RecordedTarget:
    """A traced function."""

    name: str
    addr: Address
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
        """True if the target is a BPF program."""
        return self.name.startswith("@")

    @property
    def tail_call_reachable(self) -> bool:
        """True if tail calls can reach the program, which then starts with xor eax/rax (clears the counter)."""
        after = self.site_before[self.patch_offset + 5 :]
        return self.is_program and after.startswith((b"\x31\xc0", b"\x48\x31\xc0"))


@dataclass(frozen=True, slots=True)
class RecordedImage:
    """A trampoline as read from kernel memory."""

    kind: str
    addr: Address
    sym: str
    attached_to: Texts
    code: bytes
    prog_call_order: Texts
    tramp_image: Mapping[str, Any] | None
    size: Annotated[int | None, lambda f, name: f.maybe(name, int)]


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
        """The program with this name. Raises GoldenError if there is none."""
        for program in self.programs:
            if program.name == name:
                return program
        raise GoldenError(f"{self.id}: no program {name!r}")


def read_cases(path: Path) -> Iterator[Case]:
    """Every case of a golden file. Raises GoldenError if the file is damaged or of another kind."""
    return read_each(path, _case)


def _case(record: dict[str, Any], where: str) -> Case:
    f, release = case_fields(record, where)
    return f.make(
        Case,
        name=f.text("case"),
        release=release,
        boot=_boot(f.sub("boot")),
        targets=tuple(map(_target, f.objects("targets"))),
        programs=tuple(map(_program, f.objects("programs"))),
        images=tuple(map(_image, f.objects("trampolines"))),
        symbols=f.symbols("symbols"),
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
    return f.make(
        RecordedTarget,
        model=FuncModel(f.text("name"), args, ret.number("size"), ret.get("signed", bool)),
        sealed=f.get("endbr_sealed", bool),
        site_detached=f.code("site_detached") or None,
        steps=tuple(step.make(SiteStep) for step in f.objects("steps")),
    )


def _program(f: Fields) -> RecordedProgram:
    if f.text("attach") not in ATTACH_TYPES:
        raise GoldenError(f"{f.where}: 'attach' is {f.text('attach')!r}, not one of {', '.join(sorted(ATTACH_TYPES))}")
    multi = f.maybe("multi_btf_ids", list)
    return f.make(
        RecordedProgram,
        refused=abs(f.number("load_errno")) or abs(f.number("attach_errno")),
        btf_ids=tuple(multi) if multi is not None else (f.number("attach_btf_id"),),
        cookies=tuple(f.maybe("multi_cookies", list) or ()),
        observed=f.sub("observed").make(ObservedRun),
    )


def _image(f: Fields) -> RecordedImage:
    return f.make(RecordedImage, code=f.code("hex"), tramp_image=f.get("tramp_image", (dict, type(None))))
