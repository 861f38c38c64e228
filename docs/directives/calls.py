"""``{calls} DESIGN``: one call of a traced function as a sequence diagram, from a run."""

from dataclasses import dataclass, field

from directives.of_design import ARGUMENTS, TRACED, Attached, OfDesign
from directives.svg import Drawing
from emu.machine.vcpu import Vcpu

CALLER = "caller"
_PATCHED = {b"\xe8": "call", b"\xe9": "jmp"}
"""What a site may begin with; its listing still has the nop."""
_LANE, _ROW, _TOP = 124, 26, 54
_SHORT = {
    "bpf_trampoline": "trampoline", "generic_trampoline": "trampoline", "tramplab_caller": "caller's image",
    "tramplab_thunks": "thunk", "bpf_prog_prog": "program",
}  # fmt: skip


@dataclass(slots=True)
class Stretch:
    """Instructions in one function, one after the other, and the one that left it."""

    name: str
    instructions: int = 0
    left_by: str = ""


@dataclass(slots=True)
class Run:
    """One call."""

    stretches: list[Stretch] = field(default_factory=list)

    @property
    def instructions(self) -> int:
        """Instructions in all."""
        return sum(stretch.instructions for stretch in self.stretches)


def run_call(attached: Attached) -> Run:
    """Call the function, and note where each instruction was."""
    with attached.lab() as lab:
        machine = lab.kernel.machine
        vcpu = machine.vcpus[0]
        entry = lab.kernel.kallsyms.address(TRACED)
        vcpu.switch_to(machine.task("call", entry, ARGUMENTS, struct=machine.tasks[0].address))
        run = Run()
        while True:
            _note(run, vcpu)
            if vcpu.advance(1) is not None:
                run.stretches.pop()  # back in the emulator
                return run


def _note(run: Run, vcpu: Vcpu) -> None:
    rip = vcpu.regs.rip
    name = _short(vcpu.machine.function_at(rip) or CALLER)
    before = run.stretches[-1] if run.stretches else None
    if before is None or (name is not None and name != before.name):
        before = Stretch(name or CALLER)
        run.stretches.append(before)
    before.instructions += 1
    before.left_by = _PATCHED.get(vcpu.read_code(rip, 1)) or _mnemonic(vcpu, rip)


def _mnemonic(vcpu: Vcpu, rip: int) -> str:
    image = vcpu.machine.images.at(rip)
    line = image.line_at(rip) if image is not None else None
    return line.text.split()[0] if line is not None else ""


def _short(name: str) -> str | None:
    """The name in the drawing; None for what is drawn as a part of whoever called it."""
    for prefix, short in _SHORT.items():
        if name.startswith(prefix):
            return short
    return name if name == CALLER or name.startswith(("bpf_", "__bpf_")) else None


def draw(run: Run, title: str) -> str:
    """The run as SVG: a column for each function, a row for each stretch."""
    lanes = list(dict.fromkeys([CALLER, *(stretch.name for stretch in run.stretches)]))
    rows = len(run.stretches)
    drawing = Drawing(_LANE * len(lanes), _TOP + _ROW * (rows + 1) + 10, title)
    middle = {name: _LANE * position + _LANE // 2 for position, name in enumerate(lanes)}
    for position, (name, x) in enumerate(middle.items()):
        y = 30 if position % 2 else 14  # neighbours' names have room beside each other
        drawing.text(x, y, name, anchor="middle")
        drawing.line(x, y + 6, x, drawing.height - 4, faint=True)
    at, verb = CALLER, "call"
    for row, stretch in enumerate(run.stretches):
        y = _TOP + _ROW * row
        _arrow(drawing, middle[at], middle[stretch.name], y, verb)
        drawing.box(middle[stretch.name] - 5, y, 10, _ROW - 4)
        drawing.text(middle[stretch.name] + 10, y + 16, str(stretch.instructions), muted=True)
        at, verb = stretch.name, stretch.left_by
    _arrow(drawing, middle[at], middle[CALLER], _TOP + _ROW * rows, verb)
    return drawing.svg()


def _arrow(drawing: Drawing, start: float, end: float, y: float, verb: str) -> None:
    direction = 1 if end > start else -1
    drawing.line(start + 5 * direction, y, end - 5 * direction, y, arrow=True)
    drawing.text(end - 12 * direction, y - 3, verb, anchor="end" if direction > 0 else "start", muted=True)


class Calls(OfDesign):
    """A sequence diagram."""

    def drawn(self, attached: Attached) -> tuple[str, str]:
        """See OfDesign."""
        run = run_call(attached)
        title = f"{attached}: {run.instructions} instructions, the function's own included"
        return draw(run, title), title
