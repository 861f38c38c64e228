"""Executed code as a path, whose text does not depend on addresses."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import groupby

from asm import AsmError, decode
from emu.counting.counts import OTHER
from emu.kernel.kernel import Kernel
from emu.machine.address_map import ADDRESS_MASK, PAGE_MASK
from emu.machine.vcpu import Call
from trampoline import phases as tramp_phases
from trampoline.bpf.errors import TrampolineError
from trampoline.lab import Lab, Workload, open_workload
from trampoline.tools.icount.counted_path import CountedPath, PathPiece, PhaseCode

PHASES = (*tramp_phases.PHASES, OTHER)
"""Phases in display order."""
_NUMBER = re.compile(r"-?0x[0-9a-f]+")
_PERCPU = re.compile(r"gs:\[0x[0-9a-f]+\]")
_KERNEL_HALF = 1 << 63
_LONGEST = 15
"""Length of the longest instruction, in bytes."""


def workload_paths(workload: Workload) -> dict[str, CountedPath]:
    """Make a workload's calls in order, and count each whole, including the function and the programs.

    Paths are named by the text of the call. Raises TrampolineError for a repeated call, and what ``open_workload`` and
    calls raise.
    """
    paths: dict[str, CountedPath] = {}
    with open_workload(replace(workload, parallel=False)) as ready:
        for call in ready.calls:
            name = " ".join(call.text.split())
            if name in paths:
                raise TrampolineError(f"{name}: a call may be given only once")
            paths[name] = path_of_call(ready.lab, ready.call(call))
    return paths


def path_of_call(lab: Lab, call: Call) -> CountedPath:
    """A whole call on a laboratory, including the function and the programs. Its programs must still be attached.

    Raises TrampolineError if the call was not counted.
    """
    counts = call.counts
    if counts is None:
        raise TrampolineError("the call was not counted: a call within a call, or a machine that does not count")
    phase = lab.kernel.machine.images.phase
    executed = [(address, times, phase(address) or OTHER) for address, times in counts.by_address.items()]
    return path_of(lab, executed, counts.unbalanced_returns)


def path_of(lab: Lab, executed: Iterable[tuple[int, int, str]], unbalanced_returns: int) -> CountedPath:
    """A path on a laboratory, from addresses of instructions, their execution counts, and their phases."""
    by_phase: dict[str, list[tuple[int, int]]] = {}
    for address, times, phase in executed:
        by_phase.setdefault(phase, []).append((address, times))
    code = CodeText(lab.kernel)
    phases = {
        phase: PhaseCode(sum(times for _, times in by_phase[phase]), code.pieces(by_phase[phase]))
        for phase in sorted(by_phase, key=lambda phase: PHASES.index(phase) if phase in PHASES else len(PHASES))
    }
    return CountedPath(
        sum(phase.instructions for phase in phases.values()), unbalanced_returns, phases, conditions_of(lab)
    )


def conditions_of(lab: Lab) -> Mapping[str, str]:
    """Kernel and design of a laboratory."""
    return {"flavour": lab.release.name, "config": lab.kernel.config.name, "design": lab.design.name}


class CodeText:
    """Text of a kernel's code in which symbols replace addresses."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def pieces(self, executed: Iterable[tuple[int, int]]) -> tuple[PathPiece, ...]:
        """Instructions and their execution counts by image: generated images first, then by name."""

        def place(row: tuple[int, int]) -> tuple[bool, str]:
            return row[0] < self._kernel.layout.modules, self._title(row[0])

        rows = sorted(executed)
        rows.sort(key=place)
        return tuple(
            PathPiece(name, tuple(self._line(address, times) for address, times in group))
            for (_, name), group in groupby(rows, place)
        )

    def _title(self, address: int) -> str:
        image = self._kernel.machine.images.at(address)
        if image is not None and image.name:
            return self._without_addresses(image.name)
        return self._kernel.machine.function_at(address) or "?"

    def _line(self, address: int, times: int) -> str:
        text = self._without_addresses(self._instruction(address))
        return text if times == 1 else f"{times}x {text}"

    def _instruction(self, address: int) -> str:
        """An instruction as in the listing or, if it has been patched since, as in memory."""
        machine = self._kernel.machine
        image = machine.images.at(address)
        line = image.line_at(address) if image is not None else None
        if image is not None and line is not None and image.code_of(line) == machine.read(address, line.size):
            return line.text
        code = machine.read(address, min(_LONGEST, PAGE_MASK + 1 - (address & PAGE_MASK)))
        for size in range(1, len(code) + 1):
            try:
                (instruction,) = decode(code[:size], address)
            except (AsmError, ValueError):
                continue
            return instruction.text
        return "?"

    def _without_addresses(self, text: str) -> str:
        return _NUMBER.sub(self._named, _PERCPU.sub("gs:[per-CPU]", text))

    def _named(self, number: re.Match[str]) -> str:
        address = int(number[0], 16) & ADDRESS_MASK
        if address < _KERNEL_HALF:
            return number[0]
        image = self._kernel.machine.images.at(address)
        if image is not None and image.name:
            offset = address - image.address
            return self._without_addresses(image.name) + (f"+{offset:#x}" if offset else "")
        known = self._kernel.kallsyms.name(address)
        if known is not None:
            return known
        region = self._kernel.machine.regions_at(address)
        return f"<{region}>" if region else number[0]
