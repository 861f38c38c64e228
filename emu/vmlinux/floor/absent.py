"""Kernel functions whose work the unbooted kernel has nothing for: programs, opened files, new address spaces.

Contract: reaching one ends in :class:`emu.vmlinux.machine_errors.NotHosted` with its name and callers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from emu.vmlinux.floor.table import Group, Host
from emu.vmlinux.machine_errors import NotHosted

if TYPE_CHECKING:
    from emu.vmlinux.machine import KernelMachine
    from emu.vmlinux.unbooted_machine import UnbootedMachine

__all__ = ["GROUP"]


def _refuse(_machine: UnbootedMachine, cpu: KernelMachine, name: str) -> int:
    raise cpu.failure(NotHosted, f"{name}() was reached, which an unbooted kernel has nothing for,")


GROUP = Group(
    "absent",
    (
        Host(
            "kernel_clone call_usermodehelper_exec filp_open do_filp_open kern_mount __request_module",
            _refuse,
        ),
    ),
)
