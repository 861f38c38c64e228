"""Regenerate recorded trampoline images from their inputs, and compare."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from trampoline.bpf.errors import GoldenError
from trampoline.bpf.uapi import ATTACH_WORDS
from trampoline.image.generator import ProgCall, TrampFlag, Trampoline, arch_prepare_bpf_trampoline
from trampoline.tools.golden.trampoline_case import Case, RecordedImage, RecordedProgram, RecordedTarget
from trampoline.tramp_links import TrampProgType, enter_exit, flags_of, kind_of, links_of

TRAMPOLINE = "bpf_trampoline"
"""Kind of the images that are compared; others are ftrace's, or old images of earlier cases."""
BTF_ID_MASK = 0x7FFFFFFF
"""Mask of a target's BTF id in the low bits of a trampoline's key (``bpf_trampoline_compute_key()``)."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference from a recording. ``offset`` is in bytes, -1 if it has no meaning."""

    id: str
    what: str
    offset: int
    expected: Any
    got: Any


def first_difference(ours: bytes, recorded: bytes) -> int:
    """Offset of the first byte that differs, or the length of the shorter one."""
    pairs = enumerate(zip(ours, recorded, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(ours), len(recorded)))


def attached_programs(case: Case, target: RecordedTarget, upto: int | None = None) -> list[RecordedProgram]:
    """The programs on a target in attach order, after its step number ``upto`` (None: the last)."""
    attached: list[RecordedProgram] = []
    for step in target.steps[: None if upto is None else upto + 1]:
        if step.after.startswith("detach("):
            gone = step.after[len("detach(") : -1]
            attached = [program for program in attached if program.name != gone]
            continue
        attached += [
            program
            for program in case.programs
            if program.name == step.after
            and not program.is_fprobe
            and target.btf_id in program.btf_ids
            and program not in attached
            and not program.refused
        ]
    return attached


def prog_call(case: Case, target: RecordedTarget, program: RecordedProgram) -> tuple[TrampProgType, ProgCall]:
    """A recorded program at one target, as the generator's input."""
    attach = ATTACH_WORDS[program.attach]
    kind = kind_of(attach, target.model)
    if program.prog_ptr is None or program.jited_addr is None:
        raise GoldenError(f"{case.id}: {program.name} is attached but its addresses were not recorded")
    enter, leave = enter_exit(attach, sleepable=program.sleepable)
    session = kind is TrampProgType.FSESSION
    return kind, ProgCall(
        program.name,
        program.prog_ptr,
        program.jited_addr,
        program.cookie_at(target.btf_id) & (1 << 64) - 1,
        enter,
        leave,
        is_session=session,
        session_cookie=session and program.uses_session_cookie,
    )


def target_of(case: Case, image: RecordedImage) -> RecordedTarget:
    """The function of an image, by name, or by the BTF id in the image's own symbol."""
    if image.attached_to:
        wanted = [target for target in case.targets if target.name == image.attached_to[0]]
    else:
        key = image.sym.removeprefix("bpf_trampoline_")
        wanted = [t for t in case.targets if key.isdigit() and int(key) & BTF_ID_MASK == t.btf_id]
    if not wanted:
        raise GoldenError(f"{case.id}: no target for the image at {image.addr:#x}")
    return wanted[0]


def regenerate(case: Case, image: RecordedImage) -> Trampoline:
    """Generate the image again, using only its address and its struct bpf_tramp_image's address from the recording."""
    target = target_of(case, image)
    programs = attached_programs(case, target)
    links = links_of(prog_call(case, target, program) for program in programs)
    kept = TrampFlag.TAIL_CALL_CTX if target.tail_call_reachable else TrampFlag(0)
    flags = flags_of(
        case.release.trampoline,
        calls_original=links.call_original,
        uses_func_ip=any(p.uses_func_ip for p in programs),
        kept=kept,
    )
    im = int(image.tramp_image["addr"], 16) if image.tramp_image else 0
    return arch_prepare_bpf_trampoline(
        case.release.trampoline,
        case.boot,
        target.model,
        flags,
        links,
        func_addr=target.addr,
        address=image.addr,
        im=im,
        symbols=case.symbols,
        site_offset=target.patch_offset,
    )


def compare_image(case: Case, image: RecordedImage) -> Iterator[Difference]:
    """Differences of the regenerated image from the recorded one: bytes, patch addresses, program order."""
    made = regenerate(case, image)
    code = made.image.code
    if code != image.code:
        offset = first_difference(code, image.code)
        yield Difference(case.id, f"image at {image.addr:#x}", offset, image.code.hex(), code.hex())
    links = links_of(
        prog_call(case, target_of(case, image), p) for p in attached_programs(case, target_of(case, image))
    )
    order = tuple(call.name for call in links.calls)
    if order != image.prog_call_order:
        yield Difference(case.id, "program order", -1, list(image.prog_call_order), list(order))
    for field, got in (("ip_after_call", made.ip_after_call), ("ip_epilogue", made.ip_epilogue)):
        recorded = (image.tramp_image or {}).get(field)
        if recorded is not None and int(recorded, 16) != (got or 0):
            yield Difference(case.id, f"tramp_image.{field}", -1, recorded, f"{got or 0:x}")
    for number, recorded in enumerate((image.tramp_image or {}).get("skips", ())):
        got_skip = (
            {k: f"{getattr(made.skips[number], k):x}" for k in ("prog", "nop", "target")}
            if number < len(made.skips)
            else None
        )
        if recorded != got_skip:
            yield Difference(case.id, f"tramp_image.skips[{number}]", -1, recorded, got_skip)
