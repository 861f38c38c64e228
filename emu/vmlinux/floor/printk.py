"""The kernel's log, and its last words.

Contract: ``vprintk*()`` formats with the kernel's own ``vscnprintf()``; the line goes to the machine's log. WARN goes its own
way through the bug table and is a line of the log. What would print registers and stacks does nothing. An oops, a BUG or
a panic ends in :class:`emu.vmlinux.errors.KernelDied`: locks stay held, so that the state is to be thrown away.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from emu.vmlinux.errors import KernelDied
from emu.vmlinux.floor.state import PRINT_BUFFER, PRINT_BUFFER_SIZE
from emu.vmlinux.floor.table import Constant, Group, Host, Native

if TYPE_CHECKING:
    from emu.vmlinux.unbooted_machine import UnbootedMachine
    from emu.vmlinux.vcpu import Vcpu

__all__ = ["GROUP"]


def _formatted(text: str, arguments: str) -> Callable[[UnbootedMachine], str]:
    """The registers that hold the format and its va_list."""
    return lambda machine: f"""
        mov rdx, {text}
        mov rcx, {arguments}
        movabs rdi, {PRINT_BUFFER:#x}
        mov esi, {PRINT_BUFFER_SIZE}
        call vscnprintf
        jmp log_line
    """


def _log_line(machine: UnbootedMachine, _cpu: Vcpu, _name: str) -> int:
    line = machine.memory.text(PRINT_BUFFER, PRINT_BUFFER_SIZE)
    if line[:1] == "\x01":
        line = line[2:]
    machine.log.append(line)
    return len(line)


def _die(machine: UnbootedMachine, cpu: Vcpu, name: str) -> int:
    message = f"{name}()"
    if name in ("die", "panic"):
        message += f": {machine.memory.text(cpu['rdi'], 256)}"
    if name == "page_fault_oops":
        regs = machine.memory.u64(cpu["rdi"] + machine.layout.offset("pt_regs", "ip"))
        message = f"page fault at {cpu['rdx']:#x}, by {machine.describe(regs)}"
    elif name == "die":
        message += f", at {machine.describe(machine.memory.u64(cpu['rsi'] + machine.layout.offset('pt_regs', 'ip')))}"
    raise KernelDied(message, cpu.callers())


GROUP = Group(
    "printk",
    (
        Host("", _log_line, "log_line"),
        Native("", "vprintk", _formatted("rdi", "rsi"), ("vscnprintf",)),
        Native("", "vprintk_default", _formatted("rdi", "rsi"), ("vscnprintf",)),
        Native("", "vprintk_emit", _formatted("rcx", "r8"), ("vscnprintf",)),
        Constant("show_regs dump_stack_lvl print_modules __show_regs show_stack"),
        Host("die panic vpanic page_fault_oops oops_end die_addr", _die),
    ),
)
