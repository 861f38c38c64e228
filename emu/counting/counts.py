"""Instructions executed by a run, by phase and by function."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

OTHER = "other"
"""The phase or function of instructions outside of all images and symbols."""


@dataclass(frozen=True, slots=True)
class InstructionCounts:
    """Instructions executed, by place. The sums by phase and by function are both ``instructions``.

    ``by_address`` contains the executions of each instruction. A host call counts as one instruction, its ``ret``.
    """

    instructions: int
    unbalanced_returns: int
    by_phase: dict[str, int]
    by_function: dict[str, int]
    by_address: dict[int, int]


def aggregate(
    by_address: Mapping[int, int],
    unbalanced_returns: int,
    phase_of: Callable[[int], str | None],
    function_of: Callable[[int], str | None],
) -> InstructionCounts:
    """Sum executions by the phase and the function of their addresses, each in order of first address."""
    by_phase: dict[str, int] = {}
    by_function: dict[str, int] = {}
    for address in sorted(by_address):
        executed = by_address[address]
        phase, function = phase_of(address) or OTHER, function_of(address) or OTHER
        by_phase[phase] = by_phase.get(phase, 0) + executed
        by_function[function] = by_function.get(function, 0) + executed
    return InstructionCounts(sum(by_address.values()), unbalanced_returns, by_phase, by_function, dict(by_address))
