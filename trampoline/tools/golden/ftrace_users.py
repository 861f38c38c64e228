"""The other ftrace users of a recorded case: function tracer, kprobe, fprobe, as ftrace_ops on the same sites.

What they did is not modelled, only that they were there. The address of such a user's private trampoline is an input;
which address a site reaches at which moment is what we compare.
"""

from collections.abc import Iterator

from emu.kernel.ftrace.ops import FtraceOps, FtraceOpsFlag
from emu.kernel.kernel import Kernel
from emu.kernel.text.entry import SITE_SIZE
from emu.kernel.text.text_poke import CALL
from trampoline.tools.golden.trampoline_case import Case, RecordedTarget

REGS_CALLER = "ftrace_regs_caller"

_FLAGS = {"kprobe": FtraceOpsFlag.SAVE_REGS}
"""What users asked for beside a call, by the name of the step that they came with."""

Moment = list[tuple[RecordedTarget, int]]
"""Targets at one moment, each with the number of its step."""


def moments(case: Case) -> Iterator[Moment]:
    """The steps of all targets in the order in which they happened.

    A target that was recorded later has fewer steps at the start, when nothing had happened yet.
    """
    longest = max((len(target.steps) for target in case.targets), default=0)
    for back in range(longest, 0, -1):
        yield [(target, len(target.steps) - back) for target in case.targets if len(target.steps) >= back]


def stub_addresses(case: Case) -> set[int]:
    """Where the recorded ftrace_regs_caller stood, if the case has it."""
    return {image.addr for image in case.images if image.sym == REGS_CALLER}


class FtraceUsers:
    """The other users of one case. The recorder's tracer and kprobe were on its first target, fprobes on all."""

    def __init__(self, kernel: Kernel, case: Case) -> None:
        self._kernel, self._case = kernel, case
        self._present: dict[str, FtraceOps] = {}

    def begin(self) -> None:
        """Those that an earlier case left on a site; a step of this one may name them by saying that they go."""
        for target in self._case.targets:
            if target.steps and target.steps[0].target:
                leaving = [step.after.removeprefix("no") for step in target.steps if step.after.startswith("no")]
                self._come(leaving[0] if leaving else "other", [target], target.steps[0].target)

    def follow(self, moment: Moment) -> None:
        """Let users come or go as the steps of a moment say, once for all targets."""
        for after in dict.fromkeys(target.steps[number].after for target, number in moment if number):
            name = after.partition("(")[0]
            program = next((p for p in self._case.programs if p.name == name), None)
            if name.startswith("no"):
                self._go(name.removeprefix("no"))
            elif program is not None and program.is_fprobe and not program.refused and name not in self._present:
                self._come(name, list(self._case.targets), self._trampoline(after, self._case.targets))
            elif program is None and "(" in after and not after.startswith("detach("):
                targets = self._case.targets[:1]
                self._come(name, list(targets), self._trampoline(after, targets))

    def detach_programs(self) -> None:
        """The programs among them go with the other programs."""
        for program in self._case.programs:
            self._go(program.name)

    def end(self) -> None:
        """Nobody is left."""
        for name in list(self._present):
            self._go(name)

    def _come(self, name: str, targets: list[RecordedTarget], trampoline: int) -> None:
        ops = FtraceOps(name, "ftrace_stub", _FLAGS.get(name, FtraceOpsFlag(0)))
        ftrace, execmem = self._kernel.ftrace, self._kernel.execmem
        ftrace.ftrace_set_filter_ips(ops, [target.addr + target.patch_offset for target in targets])
        execmem.reserved = [trampoline] if trampoline else []
        ftrace.register_ftrace_function(ops)
        execmem.reserved = []
        self._present[name] = ops

    def _go(self, name: str) -> None:
        ops = self._present.pop(name, None)
        if ops is not None:
            self._kernel.ftrace.unregister_ftrace_function(ops)
            self._kernel.rcu.settle()

    def _trampoline(self, after: str, targets: tuple[RecordedTarget, ...]) -> int:
        """Where a user's private trampoline stood, 0 where no site ever told.

        A site that the user has for itself calls it: after its step, or when the programs are gone.
        """
        stubs = stub_addresses(self._case)
        for target in targets:
            reached = [step.target for step in target.steps if step.after == after]
            reached.append(_called(target, target.site_detached or b""))
            for address in reached:
                if address and address not in stubs:
                    return address
        return 0


def _called(target: RecordedTarget, code: bytes) -> int:
    """What the site calls in a target's recorded bytes, 0 for nothing."""
    site = code[target.patch_offset : target.patch_offset + SITE_SIZE]
    if len(site) < SITE_SIZE or site[0] != CALL:
        return 0
    after = target.addr + target.patch_offset + SITE_SIZE
    return after + int.from_bytes(site[1:], "little", signed=True)
