"""The panes as lines of text, from a snapshot (``Seen``): pure functions, for the screen and for ``--plain``."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from trampoline.tools.debugger import CodeLine, FrameSlot
from trampoline.tools.debugger.terminal.styled_text import Line, Role, Span, line, restyled
from trampoline.tools.debugger.terminal.view_model import TRAPPED, Seen

REGISTERS = (
    *(("rax", "r8"), ("rbx", "r9"), ("rcx", "r10"), ("rdx", "r11"), ("rsi", "r12")),
    *(("rdi", "r13"), ("rbp", "r14"), ("rsp", "r15"), ("rip", "gs_base")),
)
"""Registers per row."""
FLAGS = ((0, "CF"), (2, "PF"), (4, "AF"), (6, "ZF"), (7, "SF"), (9, "IF"), (10, "DF"), (11, "OF"))
"""Names of the eflags bits, as in gdb."""
CODE_COLUMNS = 20
"""Width of the instruction bytes: the longest instruction of a trampoline has ten."""
TEXT_COLUMNS = 34
"""Width of the instruction text, before its comment."""
NAME_COLUMNS = 10
"""Least width of a stack slot's name."""
CHANGED = "*"
"""Mark after a changed value."""


@dataclass(frozen=True, slots=True)
class PaneRow:
    """A line of a pane, and the guest address that it shows."""

    spans: Line
    address: int | None = None


@dataclass(frozen=True, slots=True)
class PaneText:
    """Contents of a pane: title, rows, and the index of the row that must be visible."""

    title: str
    rows: tuple[PaneRow, ...]
    at: int | None = None


def code(seen: Seen, *, cursor: int | None = None, with_bytes: bool = False) -> PaneText:
    """The listing around the present instruction. ``cursor``: guest address of the user's cursor."""
    rows = list[PaneRow]()
    function, source = "", ""
    at = None
    for found in seen.code:
        name, _ = place_of(found)
        if name != function:
            function = name
            rows.append(PaneRow(line(Span(f"<{function}>:", Role.NAME))))
        rows += [PaneRow(line(Span(f"{label}:", Role.NAME))) for label in seen.labels.get(found.address, ())]
        if found.source and found.source != source:
            rows.append(PaneRow(line("    ", Span(f"; {found.source}", Role.SOURCE))))
        source = found.source
        if found.address == seen.rip:
            at = len(rows)
        rows.append(PaneRow(code_line(found, seen, with_bytes=with_bytes, cursor=cursor), found.address))
    if seen.rip is None or not rows:
        rows = [*(PaneRow(line(text)) for text in _no_code(seen)), *rows]
    current = seen.current
    where = f": {place_of(current)[0]}" if current else ""
    return PaneText(f"code{where}", tuple(rows), at)


def _no_code(seen: Seen) -> Iterator[str]:
    thread = seen.thread
    if thread is None:
        yield "No thread to step."
    elif thread.is_done:
        yield f"{thread.name} has ended. rs and rc go back, t to the next thread, q leaves."
    else:
        yield f"{thread.name}, an operation of process context: {thread.state}"
        yield "s goes to its next point, f to its end, t to the next thread."


def code_line(found: CodeLine, seen: Seen, *, with_bytes: bool = False, cursor: int | None = None) -> Line:
    """One instruction: breakpoint, arrow, offset, phase, text, comment."""
    current = found.address == seen.rip
    number = seen.breakpoints.get(found.address)
    mark = Span("b", Role.BREAKPOINT) if number is not None else Span(" ")
    arrow = "=>" if current else "> " if found.address == cursor else "  "
    body: Line = (
        Span(f"{arrow} "),
        Span(f"{place_of(found)[1]:<7}", Role.FAINT),
        *((Span(f"{found.code.hex():<{CODE_COLUMNS}} ", Role.FAINT),) if with_bytes else ()),
        Span(f"{found.phase or '':<8}", Role.PHASE),
        Span(found.text),
    )
    if current:
        body = restyled(body, Role.CURRENT)
    elif found.address == cursor:
        body = restyled(body, Role.CURSOR)
    note = remark(found)
    if not note:
        return (mark, *body)
    gap = " " * max(TEXT_COLUMNS - len(found.text), 1)
    return (mark, *body, Span(f"{gap}; {note}", Role.WARNING if found.patch else Role.COMMENT))


def place_of(found: CodeLine) -> tuple[str, str]:
    """The function of an instruction, and the offset in it: ``+0x1c``."""
    name, _, offset = found.symbol.partition("+")
    return name, f"+{offset or '0x0'}"


def remark(found: CodeLine) -> str:
    """Text after an instruction: the patch in progress, the listing's comment, the source eBPF instruction."""
    return " | ".join(part for part in (found.patch, found.comment, found.ebpf) if part)


def registers(seen: Seen) -> PaneText:
    """All registers, two in a row, with changed ones marked."""
    rows = [PaneRow((*_register(seen, one), *_register(seen, other))) for one, other in REGISTERS if seen.registers]
    if seen.registers:
        flags = seen.registers["eflags"]
        names = " ".join(name for bit, name in FLAGS if flags >> bit & 1)
        changed = _register_changed(seen, "eflags")
        role = Role.CHANGED if changed else Role.PLAIN
        rows.append(PaneRow(line(Span("eflags", Role.NAME), Span(f" {flags:08x}{CHANGED * changed} [{names}]", role))))
    return PaneText("registers", tuple(rows))


def _register(seen: Seen, name: str) -> Line:
    changed = _register_changed(seen, name)
    label = "gs" if name == "gs_base" else name
    text = f" {seen.registers[name]:016x}{CHANGED if changed else ' '}"
    return line(Span(f"{label:<3}", Role.NAME), Span(text, Role.CHANGED if changed else Role.PLAIN))


def _register_changed(seen: Seen, name: str) -> bool:
    if seen.thread is None or seen.before.thread != seen.thread.number:
        return False
    return seen.before.registers.get(name) != seen.registers[name]


def stack(seen: Seen) -> PaneText:
    """The words of the present function's frame with their names, the highest address first."""
    if seen.frame is None:
        return PaneText("stack", ())
    rsp = seen.registers.get("rsp")
    rows = [PaneRow(_slot(slot, seen, is_top=slot.address == rsp), slot.address) for slot in seen.frame.slots]
    return PaneText(f"stack, from {seen.frame.base}", tuple(rows), len(rows) - 1 if rows else None)


def _slot(slot: FrameSlot, seen: Seen, *, is_top: bool) -> Line:
    before = seen.words_before.get(slot.address)
    changed = before is not None and before != slot.value
    name, arrow, target = slot.name.partition(" → ")
    value = target if arrow else f"{slot.value:x}"
    return line(
        Span(">" if is_top else " "),
        Span(f"{slot.offset:+#6x} ", Role.FAINT),
        Span("return " if arrow else f"{name:<{NAME_COLUMNS}} ", Role.NAME),
        Span(f"{value}{CHANGED if changed else ''}", Role.CHANGED if changed else Role.PLAIN),
        Span(f" {slot.words}" if slot.words and not arrow else "", Role.COMMENT),
    )


def chain(seen: Seen) -> PaneText:
    """The call chain, innermost first."""
    rows = [
        PaneRow(line(Span(f"#{depth:<2}", Role.FAINT), Span(site.name), Span(f"  {site.phase or ''}", Role.PHASE)))
        for depth, site in enumerate(seen.chain)
    ]
    return PaneText("call chain", tuple(rows))


def events(seen: Seen) -> PaneText:
    """The events, the last at the end, with new ones marked."""
    first = seen.event_count - len(seen.events)
    rows = []
    for number, (position, event) in enumerate(seen.events, first):
        new = number >= seen.before.events
        text = Span(event, Role.CHANGED if new else Role.PLAIN)
        rows.append(PaneRow(line(Span(f"{position:>6}{CHANGED if new else ' '} ", Role.FAINT), text)))
    return PaneText("events", tuple(rows), len(rows) - 1 if rows else None)


def cpus(seen: Seen) -> PaneText:
    """The threads, and the state of each vCPU."""
    rows = []
    for thread in seen.threads:
        here = seen.thread is not None and thread.number == seen.thread.number
        name = Span(thread.name, Role.NAME)
        about = (f"cpu {thread.cpu}, {thread.state}: ", name) if thread.is_task else (name, f": {thread.state}")
        mark = "=>" if here else "  "
        rows.append(PaneRow(line(f"{mark} {thread.number} ", *about)))
    for cpu in seen.cpus:
        states = ["idle"] if cpu.thread is None else []
        states += ["not serialised"] if cpu.pending else []
        if states:
            rows.append(PaneRow(line(f"   cpu {cpu.index}: {', '.join(states)}")))
        for part in cpu.pending:
            sees = ", sees it" if part.sees_new else ""
            text = f"{seen.names[part.address]}: {part.old.hex()} -> {part.new.hex()}{sees}"
            rows.append(PaneRow(line("      ", Span(text, Role.WARNING)), part.address))
    if seen.grace_periods:
        rows.append(PaneRow(line(f"   can end: grace period of {', '.join(seen.grace_periods)}")))
    return PaneText("threads, vCPUs", tuple(rows))


def schedule(seen: Seen) -> PaneText:
    """The steps of a schedule with their actors and places, the present one marked."""
    found = seen.schedule
    if found is None:
        return PaneText("schedule", ())
    if found.is_left:
        return PaneText("schedule", (PaneRow(line(Span("left: a step went another way", Role.WARNING))),))
    rows = []
    for number, step in enumerate(found.steps):
        here = number == found.present
        text = f"{'=>' if here else '  '} {number + 1:>3} {step.token:<3} {step.name}: {step.where}"
        rows.append(PaneRow(line(Span(text, Role.CURRENT if here else Role.PLAIN)), step.position))
    mark = "=>" if found.present is None else "  "
    rows.append(PaneRow(line(f"{mark} ", Span(found.failure or "nothing breaks", Role.WARNING))))
    return PaneText("schedule", tuple(rows), len(rows) - 1 if found.present is None else found.present)


def status(seen: Seen) -> Line:
    """The status line: position, thread, CPU, title."""
    parts = [f"position {seen.position}" + (f" of {seen.end}" if seen.end != seen.position else "")]
    if seen.thread is not None:
        cpu = f" on cpu {seen.thread.cpu}" if seen.thread.is_task else ""
        parts.append(f"thread {seen.thread.number}{cpu}")
    if seen.current is not None and seen.current.phase:
        parts.append(seen.current.phase)
    return line(f" {'  '.join(parts):<36}  {seen.title}")


def about(seen: Seen) -> Line:
    """Full annotation of the current instruction, which the listing may have to cut."""
    current = seen.current
    if seen.thread is not None and seen.thread.state == TRAPPED:
        return line(Span(TRAPPED, Role.WARNING))
    if current is None:
        return ()
    remarks = [current.source, remark(current)]
    return line(Span(" | ".join(part for part in remarks if part), Role.WARNING if current.patch else Role.COMMENT))


PANES: Mapping[str, Callable[[Seen], PaneText]] = {
    "code": code,
    "stack": stack,
    "registers": registers,
    "chain": chain,
    "cpus": cpus,
    "events": events,
    "schedule": schedule,
}
"""All panes by name; their order is that of their numbers."""
