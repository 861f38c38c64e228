"""Changes of registers and of the present frame by an instruction or a command."""

from trampoline.tools.debugger.terminal.view_model import ViewBaseline

_UNSAID = ("rip", "rsp", "eflags")
"""Registers that are left out: nearly every instruction changes them."""
_PUSHED = 8


def effects(before: ViewBaseline, after: ViewBaseline, *, pushes: bool = False) -> list[str]:
    """Changed registers (except rip, rsp and eflags) and frame words: ``rax=0x1``, ``[nr_args]=0x1``.

    ``pushes``: a single instruction was executed, which may have pushed a word.
    """
    if before.thread != after.thread:
        return []
    found = [
        f"{name}={value:#x}"
        for name, value in after.registers.items()
        if name not in _UNSAID and before.registers.get(name) != value
    ]
    if after.frame is None or before.frame is None:
        return found
    words, rsp = before.words, after.registers["rsp"]
    pushed = rsp if pushes and before.registers["rsp"] - rsp == _PUSHED else None
    for slot in after.frame.slots:
        old = words.get(slot.address)
        if (old is not None and old != slot.value) or slot.address == pushed:
            name, _, target = slot.name.partition(" → ")
            found.append(f"[{name or f'{after.frame.base}{slot.offset:+#x}'}]={target or f'{slot.value:#x}'}")
    return found
