"""Calls of a real kernel's functions, with what is attached there or with an object's programs: ``tramp run``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from emu.vmlinux.run import Run
from trampoline.lab.kernel_call import KernelCall
from trampoline.lab.own_kernel import OwnKernel
from trampoline.tools.run import plain


@dataclass(frozen=True, slots=True)
class KernelCalled:
    """One call: its value, its run, and its instructions ``before`` programs were attached (None: none were)."""

    text: str
    value: int
    run: Run
    before: int | None = None

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "call": self.text,
            "value": self.value,
            "instructions": self.run.instructions,
            "before": self.before,
            "by_function": [list(one) for one in self.run.by_function],
            "unbalanced_returns": self.run.unbalanced_returns,
            "messages": [message.text for message in self.run.messages],
        }


@dataclass(slots=True)
class KernelOutcome:
    """Results of calls in a real kernel."""

    release: str
    attached: list[str] = field(default_factory=list)
    calls: list[KernelCalled] = field(default_factory=list)
    variables: dict[str, Any] = field(default_factory=dict)
    maps: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As plain values; bytes in hex."""
        return {
            "release": self.release,
            "attached": self.attached,
            "calls": [call.to_json() for call in self.calls],
            "variables": plain(self.variables),
            "maps": plain(self.maps),
        }


def run_in_kernel(
    kernel: OwnKernel,
    calls: Sequence[str],
    file: Path | None = None,
    *,
    names: Sequence[str] | None = None,
    targets: Mapping[str, str] | None = None,
    cookies: Mapping[str, int] | None = None,
    data: Mapping[str, int] | None = None,
) -> KernelOutcome:
    """Make calls one after the other.

    Without an object each is made twice and the second counts. With one each is made before its programs are attached,
    for the difference and for what only a first call does, and once with them. Refused, and what calls raise.
    """
    wanted = [KernelCall.parse(text) for text in calls]
    outcome = KernelOutcome(kernel.release)
    if file is None:
        for call in wanted:
            run = kernel.call(call.function, *call.arguments, warm=True)
            outcome.calls.append(KernelCalled(call.text, kernel.value(call.function, run), run))
        return outcome
    with kernel.open(file, names, targets=targets, data=data) as loaded:
        before = [kernel.call(call.function, *call.arguments, warm=True).instructions for call in wanted]
        for link in loaded.attach_all(cookies):
            way = link.program.source.section.partition("/")[0]
            outcome.attached.append(f"{link.program.name}: {way} {link.where}")
        for call, alone in zip(wanted, before, strict=True):
            run = kernel.call(call.function, *call.arguments)
            outcome.calls.append(KernelCalled(call.text, kernel.value(call.function, run), run, alone))
        outcome.variables, outcome.maps = dict(loaded.data), loaded.maps()
    return outcome
