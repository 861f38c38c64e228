"""The kernel's log, and its last words.

Contract: ``vprintk*()`` formats with the kernel's own ``vscnprintf()``; the line goes to the machine's log. What
would print registers and stacks does nothing. WARN, BUG, oops and panic are the machine's: ``emu.vmlinux.machine``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from emu.vmlinux.floor.state import PRINT_BUFFER, PRINT_BUFFER_SIZE
from emu.vmlinux.floor.table import Constant, Group, Host, Native

if TYPE_CHECKING:
    from emu.vmlinux.machine import KernelMachine
    from emu.vmlinux.unbooted_machine import UnbootedMachine

__all__ = ["GROUP"]


def _formatted(text: str, arguments: str) -> Callable[[UnbootedMachine], str]:
    """The registers that hold the format and its va_list."""
    return lambda machine: (
        f"""
        mov rdx, {text}
        mov rcx, {arguments}
        movabs rdi, {PRINT_BUFFER:#x}
        mov esi, {PRINT_BUFFER_SIZE}
        call vscnprintf
        jmp log_line
    """
    )


def _log_line(machine: UnbootedMachine, _cpu: KernelMachine, _name: str) -> int:
    line = machine.memory.text(PRINT_BUFFER, PRINT_BUFFER_SIZE)
    if line[:1] == "\x01":
        line = line[2:]
    machine.log.append(line)
    return len(line)


GROUP = Group(
    "printk",
    (
        Host("", _log_line, "log_line"),
        Native("", "vprintk", _formatted("rdi", "rsi"), ("vscnprintf",)),
        Native("", "vprintk_default", _formatted("rdi", "rsi"), ("vscnprintf",)),
        Native("", "vprintk_emit", _formatted("rcx", "r8"), ("vscnprintf",)),
        Constant("show_regs dump_stack_lvl print_modules __show_regs show_stack"),
    ),
)
