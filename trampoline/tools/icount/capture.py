"""What was executed, as a path whose code reads the same wherever it lies."""

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
"""In the order in which they are shown."""
_NUMBER = re.compile(r"-?0x[0-9a-f]+")
_PERCPU = re.compile(r"gs:\[0x[0-9a-f]+\]")
_KERNEL_HALF = 1 << 63
_LONGEST = 15
"""Bytes of the longest instruction."""


def workload_paths(workload: Workload) -> dict[str, CountedPath]:
    """Make a workload's calls, one after the other, and count each whole: the function and the programs included.

    By the call's text. TrampolineError for a call given twice; what ``open_workload`` and calls raise.
    """
    paths: dict[str, CountedPath] = {}
    with open_workload(replace(workload, parallel=False)) as ready:
        for call in ready.calls:
            name = " ".join(call.text.split())
            if name in paths:
                raise TrampolineError(f"{name} is given twice: the two would have one name")
            paths[name] = path_of_call(ready.lab, ready.call(call))
    return paths


def path_of_call(lab: Lab, call: Call) -> CountedPath:
    """A whole call on a laboratory, the function and the programs included. Before anything of it is detached.

    TrampolineError where nothing was counted.
    """
    counts = call.counts
    if counts is None:
        raise TrampolineError("the call was not counted: a call within a call, or a machine that does not count")
    phase = lab.kernel.machine.images.phase
    executed = [(address, times, phase(address) or OTHER) for address, times in counts.by_address.items()]
    return path_of(lab, executed, counts.unbalanced_returns)


def path_of(lab: Lab, executed: Iterable[tuple[int, int, str]], unbalanced_returns: int) -> CountedPath:
    """A path on a laboratory: addresses of instructions, how often each was executed, and its phase."""
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
    """The kernel and the design of a laboratory."""
    return {"flavour": lab.release.name, "config": lab.kernel.config.name, "design": lab.design.name}


class CodeText:
    """A kernel's code as text without addresses: each is written as what stands there."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def pieces(self, executed: Iterable[tuple[int, int]]) -> tuple[PathPiece, ...]:
        """Instructions and how often they were executed, by image: what was generated first, then by name."""

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
        """As the listing has it, unless it was patched since: then as it stands in memory."""
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
