"""What an attached program costs: instructions from the patch site until control is back.

T counts the site's call or jmp, the trampoline and all it calls; not endbr64, the traced function's body or the
programs' bodies (with the helpers they call). It is exact, so it is the same on every machine.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from asm import Phase
from trampoline.errors import TrampolineError
from trampoline.lab import Tracing
from trampoline.model import MAX_BPF_FUNC_ARGS
from trampoline.prog import NOTHING, BpfProg, Uses

DESIGN = "per-function"
ROWS = {"fentry": "fentry", "fexit": "fexit", "fmodret": "fmod_ret"}
"""Rows by the names of the kernel's bench tool, and the attach type of each."""
DEFAULT_FLAVOUR = {"voluntary": "6.12", "lazy": "7.2", "none": "7.2"}

_ANCHORS = {
    ("voluntary", "fentry"): (90, 2, 80),
    ("voluntary", "fexit"): (109, 2, 80),
    ("voluntary", "fmodret"): (111, 1, 83),
    ("lazy", "fentry"): (51, 2, 41),
    ("lazy", "fexit"): (74, 2, None),
    ("lazy", "fmodret"): (77, 1, None),
}
"""Measured on real kernel objects: T for one program without arguments, more for each argument, more for each
program.
"""

_PLAIN = "xor eax, eax\nret"
_FULL = """
push rbx
mov rbx, rdi
mov rax, [rbx - 8]        ; bpf_get_func_arg_cnt()
mov rax, [rbx - 0x10]     ; bpf_get_func_ip()
call bpf_get_attach_cookie_tracing
xor eax, eax
pop rbx
ret
"""
_HELPERS = ("bpf_get_attach_cookie_tracing", "bpf_get_attach_cookie")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the bench. ``anchor`` is the figure of a real kernel, ``ratio`` ours to it; None where none was
    measured.
    """

    name: str
    design: str
    flavour: str
    config: str
    nr_args: int
    programs: int
    program: str
    metadata: str | None
    instructions: int
    unbalanced_returns: int
    phases: dict[str, int]
    anchor: int | None
    ratio: float | None

    def to_json(self) -> dict[str, Any]:
        """The row as plain values."""
        return asdict(self)


def anchor(config: str, name: str, nr_args: int, programs: int) -> int | None:
    """The instructions that a real kernel of this configuration took; None where nobody measured."""
    base, per_arg, further = _ANCHORS.get((config, name), (None, None, None))
    if base is None or per_arg is None or (further is None and programs > 1):
        return None
    return base + per_arg * nr_args + (further or 0) * (programs - 1)


def measure(
    name: str, *, flavour: str, config: str, nr_args: int = 1, programs: int = 1, program: str = "plain"
) -> Row:
    """Measure one row. Raises TrampolineError for what does not exist, KernelError where the flavour can't take it."""
    if not 0 <= nr_args <= MAX_BPF_FUNC_ARGS:
        raise TrampolineError(f"{nr_args} arguments; 0 to {MAX_BPF_FUNC_ARGS} can be traced")
    if programs < 1:
        raise TrampolineError("at least one program is needed")
    with Tracing(flavour, config) as lab:
        traced = f"tramplab_args{nr_args}"
        for number in range(programs):
            # Programs run newest first; the one attached first runs last, and its result skips the original.
            lab.attach(_program(lab, name, program, last=number == 0), traced, cookie=number)
        stack = max(nr_args - 6, 0)
        call = lab.call(traced, *range(nr_args - stack), stack_args=range(stack))
        counts = call.counts
        if counts is None:
            raise TrampolineError("this machine does not count")
        phases = _phases(lab, counts.by_address, traced)
        instructions = sum(phases.values())
    known = anchor(config, name, nr_args, programs)
    return Row(
        name,
        DESIGN,
        flavour,
        config,
        nr_args,
        programs,
        program,
        None,
        instructions,
        counts.unbalanced_returns,
        phases,
        known,
        round(instructions / known, 4) if known else None,
    )


def _phases(lab: Tracing, by_address: Mapping[int, int], traced: str) -> dict[str, int]:
    """T by phase: what was executed, without the traced function behind its site and without programs."""
    kernel = lab.kernel
    site = kernel.function(traced).site
    phases: dict[str, int] = {}
    for address, executed in sorted(by_address.items()):
        name = kernel.kallsyms.function_name(address) or ""
        if address == site:
            phase = Phase.ENTRY.value
        elif name == traced or name.startswith("bpf_prog_") or name in _HELPERS:
            continue
        else:
            phase = kernel.machine.images.phase(address) or "other"
        phases[phase] = phases.get(phase, 0) + executed
    return phases


def _program(lab: Tracing, name: str, program: str, *, last: bool) -> BpfProg:
    text = _FULL if program == "full" else _PLAIN
    if name == "fmodret" and last:
        text = text.replace("xor eax, eax", "mov eax, 1")
    return lab.prog(ROWS[name], text, uses=Uses(func_ip=True) if program == "full" else NOTHING)


def bench(
    flavours: list[str], configs: list[str], *, nr_args: int = 1, programs: int = 1, program: str = "plain"
) -> list[Row]:
    """All rows for some flavours and configurations."""
    return [
        measure(name, flavour=flavour, config=config, nr_args=nr_args, programs=programs, program=program)
        for config in configs
        for flavour in flavours
        for name in ROWS
    ]
