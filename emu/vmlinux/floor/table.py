"""Kinds of entries of the floor: machine code, constants, host functions; each for kernel functions by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from emu.vmlinux.machine import KernelMachine
    from emu.vmlinux.unbooted_machine import UnbootedMachine

__all__ = ["Constant", "Entry", "Group", "Host", "Native"]


@dataclass(frozen=True, slots=True)
class Native:
    """Machine code in the guest's memory that stands for kernel functions: no Python runs.

    ``code`` gives the text for the assembler; ``label`` is the name by which other entries call it. An entry whose
    ``needs`` (kernel symbols or labels) are missing is left out.
    """

    label: str
    names: str
    code: Callable[[UnbootedMachine], str]
    needs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Constant:
    """Kernel functions that return ``value`` and do nothing."""

    names: str
    value: int = 0


@dataclass(frozen=True, slots=True)
class Host:
    """Kernel functions that a Python function stands for; what it returns goes into rax unless it is None.

    Its third argument is the kernel function's name. Without ``names`` it is called from native code only, by
    ``label``.
    """

    names: str
    function: Callable[[UnbootedMachine, KernelMachine, str], int | None]
    label: str = ""


Entry = Native | Constant | Host


@dataclass(frozen=True, slots=True)
class Group:
    """Entries that belong together. ``needs_several_cpus``: left out on one CPU, where the kernel's own code does."""

    name: str
    entries: tuple[Entry, ...] = field(default=())
    needs_several_cpus: bool = False
