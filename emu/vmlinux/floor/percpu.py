"""Per-CPU memory: ``pcpu_alloc(size, align, ...)`` gives zeroed bytes on each CPU, at one offset.

Contract: the pointer is an offset from the CPU's base, as ``this_cpu_ptr()`` wants it. ``free_percpu()`` gives nothing
back: about 100 bytes a program, 16 MiB a CPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from emu.vmlinux.floor.state import PERCPU_NEXT, STATE
from emu.vmlinux.floor.table import Constant, Group, Native

if TYPE_CHECKING:
    from emu.vmlinux.unbooted_machine import UnbootedMachine

__all__ = ["GROUP"]


def _allocate(machine: UnbootedMachine) -> str:
    """Rdi: size, rsi: alignment."""
    return f"""
        movabs r8, {STATE:#x}
        mov rax, qword ptr [r8+{PERCPU_NEXT - STATE}]
        add rax, rsi
        dec rax
        neg rsi
        and rax, rsi
        lea rcx, [rax+rdi]
        cmp rcx, {machine.percpu_size:#x}
        ja full
        mov qword ptr [r8+{PERCPU_NEXT - STATE}], rcx
        movabs r11, {machine.symbols["__per_cpu_start"]:#x}
        add rax, r11
        ret
    full:
        xor eax, eax
        ret
    """


GROUP = Group("percpu", (Native("", "pcpu_alloc pcpu_alloc_noprof", _allocate), Constant("free_percpu")))
