"""``{frames} DESIGN``: the stack as a program begins, frame by frame, from a run."""

from collections.abc import Sequence

from directives.of_design import ARGUMENTS, TRACED, Attached, OfDesign
from directives.svg import Drawing
from trampoline.bpf.prog import Uses
from trampoline.tools.debugger import BpfDebugger, FrameSlot, StackFrame

_ROW, _WIDTH, _LEFT = 22, 300, 96


def frames_at_program(attached: Attached) -> list[StackFrame]:
    """The frames between a program's first instruction and the traced function, outermost first."""
    with attached.lab(Uses(func_ip=True)) as lab:
        debugger = BpfDebugger(lab)
        debugger.call(TRACED, *ARGUMENTS)
        debugger.run_to("program")
        places = debugger.backtrace()
        inner = [level for level, place in enumerate(places[1:], 1) if not place.name.startswith(TRACED)]
        return [debugger.frame(level=level) for level in reversed(inner)]


def draw(frames: Sequence[StackFrame], title: str) -> str:
    """The frames as SVG, higher addresses above, with the distance from the register that code counts from."""
    rows = sum(len(frame.slots) for frame in frames)
    drawing = Drawing(_LEFT + 2 * _WIDTH, _ROW * (rows + len(frames)) + 10, title)
    y = 4
    for frame in frames:
        drawing.text(0, y + 15, frame.function)
        y += _ROW
        for slot in frame.slots:
            drawing.box(_LEFT, y, _WIDTH, _ROW, filled=slot.name.startswith("arg"))
            sign = "-" if slot.offset < 0 else "+"
            where = frame.base if slot.offset == 0 else f"{frame.base} {sign} {abs(slot.offset)}"
            drawing.text(_LEFT - 8, y + 15, where, anchor="end", muted=True)
            drawing.text(_LEFT + 8, y + 15, slot.name or "not used")
            drawing.text(_LEFT + _WIDTH + 8, y + 15, _value(slot), muted=True)
            y += _ROW
    return drawing.svg()


def _value(slot: FrameSlot) -> str:
    said = slot.words if slot.words not in slot.name else ""
    return f"{slot.value:#x}  {said}".rstrip()


class Frames(OfDesign):
    """The stack as a program begins."""

    def drawn(self, attached: Attached) -> tuple[str, str]:
        """See OfDesign."""
        title = f"The stack under a program: {attached}"
        return draw(frames_at_program(attached), title), title
