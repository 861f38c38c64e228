"""Drawing of the stack during a call: the frames from the caller down to the program."""

from collections.abc import Sequence
from html import escape

from trampoline.lab import Lab
from trampoline.lab.workload import ReadyCall
from trampoline.tools.debugger import BpfDebugger, DebugStopReason, FrameSlot, StackFrame


def stack_at_program(lab: Lab, call: ReadyCall) -> tuple[StackFrame, ...]:
    """The frames at the entry of the call's first program, the caller's first; empty if it runs no program.

    The kernel's state is restored.
    """
    with BpfDebugger(lab) as debugger:
        debugger.call(call.address, *call.registers, stack_args=call.stack, cpu=call.cpu)
        frames: tuple[StackFrame, ...] = ()
        if debugger.run_to("program").reason is DebugStopReason.STEP:
            frames = tuple(debugger.frame(level=level) for level in reversed(range(len(debugger.backtrace()))))
        debugger.goto(0)
    return frames


def drawn(frames: Sequence[StackFrame]) -> str:
    """The frames as one stack, high addresses first."""
    parts = ['<div class="stack" role="table" aria-label="stack, high addresses first">']
    for frame in frames:
        header = f'<div class="whose" role="row"><code role="cell">{escape(frame.function)}</code></div>'
        parts.append(f'<div class="frame" role="rowgroup">{header}')
        parts += [_slot(frame, slot) for slot in frame.slots]
        parts.append("</div>")
    return "".join([*parts, "</div>"])


def _slot(frame: StackFrame, slot: FrameSlot) -> str:
    place = f"{frame.base}{slot.offset:+d}" if slot.offset else frame.base
    name, words = slot.name or "(unused)", slot.words
    if name.startswith("return address"):
        name, words = "return address", name.partition("→ ")[2]
    kind = " return" if name == "return address" else " idle" if not slot.name else ""
    return (
        f'<div class="slot{kind}" role="row"><span class="place mono" role="cell">{place}</span>'
        f'<span class="name" role="cell">{escape(name)}</span>'
        f'<span class="value mono" role="cell">{slot.value:#x}</span>'
        f'<span class="words" role="cell">{escape(words)}</span></div>'
    )
