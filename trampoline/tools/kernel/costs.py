"""Costs of every way in, by kernel, and the difference between kernels: ``tramp bench --kernel``."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from emu.vmlinux.errors import VmlinuxError
from emu.vmlinux.ways import WAYS, Row, rows
from trampoline.lab.own_kernel import OwnKernel, StockKernel

_NUMBERED = re.compile(r"^(bpf_trampoline)_\d+|^(bpf_prog)_[0-9a-f]{16}")
"""Trampolines are named by BTF ids, programs by a digest, which differ between kernels."""


class NotUnbooted(VmlinuxError):
    """A memory image where a kernel's file is needed."""


@dataclass(frozen=True, slots=True)
class KernelCosts:
    """One kernel's rows."""

    path: str
    release: str
    rows: tuple[Row, ...]

    def to_json(self) -> dict[str, Any]:
        """As plain values, by way."""
        return {
            "path": self.path,
            "release": self.release,
            "rows": [
                {
                    "way": row.way,
                    "instructions": row.instructions,
                    "further": row.further,
                    "by_function": [list(one) for one in row.by_function],
                    "refused": row.refused or None,
                }
                for row in self.rows
            ],
        }


@dataclass(frozen=True, slots=True)
class Difference:
    """A way in two kernels: instructions more in the second, with one program and for a further one, by function."""

    way: str
    instructions: int | None
    further: int | None
    by_function: dict[str, int]

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "way": self.way,
            "instructions": self.instructions,
            "further": self.further,
            "by_function": self.by_function,
        }


def costs(kernel: OwnKernel, ways: Sequence[str] | None = None) -> KernelCosts:
    """Measure. NotUnbooted; VmlinuxError for a way that does not exist, and what ``rows`` raises."""
    if not isinstance(kernel, StockKernel):
        raise NotUnbooted(f"{kernel.path} is a memory image: programs are measured in kernels' files")
    known = [way.name for way in WAYS]
    if unknown := [name for name in ways or () if name not in known]:
        raise VmlinuxError(f"no way {unknown[0]!r}: {', '.join(known)}")
    return KernelCosts(kernel.path, kernel.release, tuple(rows(kernel.unbooted, tuple(ways) if ways else None)))


def differences(base: KernelCosts, other: KernelCosts) -> list[Difference]:
    """Of each way that both were asked for; None where one of them refuses it."""
    theirs = {row.way: row for row in other.rows}
    return [_difference(row, theirs[row.way]) for row in base.rows if row.way in theirs]


def _difference(base: Row, other: Row) -> Difference:
    if base.instructions is None or other.instructions is None:
        return Difference(base.way, None, None, {})
    first, second = _by_name(base), _by_name(other)
    by_function = {
        name: more for name in {**first, **second} if (more := second.get(name, 0) - first.get(name, 0))
    }
    further = None if base.further is None or other.further is None else other.further - base.further
    return Difference(base.way, other.instructions - base.instructions, further, by_function)


def _by_name(row: Row) -> dict[str, int]:
    """Instructions that attaching adds, by function."""
    sums: dict[str, int] = {}
    for name, count in (*row.by_function, *((name, -count) for name, count in row.without)):
        name = _NUMBERED.sub(r"\1\2", name)
        sums[name] = sums.get(name, 0) + count
    return sums
