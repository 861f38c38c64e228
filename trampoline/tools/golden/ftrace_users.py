"""Other ftrace users of a recorded case: function tracer, kprobe and fprobe as ftrace_ops on the same sites.

Their callbacks are not modelled, only their presence. The address of such a user's private trampoline is an input; the
address that a site calls at each moment is compared.
"""

from collections.abc import Iterator

from emu.kernel.ftrace.ops import FtraceOps, FtraceOpsFlag
from emu.kernel.kernel import Kernel
from emu.kernel.text.entry import SITE_SIZE
from emu.kernel.text.text_poke import CALL
from trampoline.tools.golden.trampoline_case import Case, RecordedTarget

REGS_CALLER = "ftrace_regs_caller"

_FLAGS = {"kprobe": FtraceOpsFlag.SAVE_REGS}
"""Flags of the users, besides SAVE_REGS or the like, by the name of the step that registers them."""

Moment = list[tuple[RecordedTarget, int]]
"""Targets at one moment, each with the number of its step."""


def moments(case: Case) -> Iterator[Moment]:
    """The steps of all targets in chronological order.

    A target that was recorded later lacks steps at the start, before which nothing had happened to it.
    """
    longest = max((len(target.steps) for target in case.targets), default=0)
    for back in range(longest, 0, -1):
        yield [(target, len(target.steps) - back) for target in case.targets if len(target.steps) >= back]


def stub_addresses(case: Case) -> set[int]:
    """Recorded address of ftrace_regs_caller, as a set; empty if the case has none."""
    return {image.addr for image in case.images if image.sym == REGS_CALLER}


class FtraceUsers:
    """The other users of one case. The recorder had its tracer and kprobe on its first target, fprobes on all."""

    def __init__(self, kernel: Kernel, case: Case) -> None:
        self._kernel, self._case = kernel, case
        self._present: dict[str, FtraceOps] = {}

    def begin(self) -> None:
        """Register users that an earlier case left on a site; a later step may name them by their removal."""
        for target in self._case.targets:
            if target.steps and target.steps[0].target:
                leaving = [step.after.removeprefix("no") for step in target.steps if step.after.startswith("no")]
                self._come(leaving[0] if leaving else "other", [target], target.steps[0].target)

    def follow(self, moment: Moment) -> None:
        """Register or unregister users according to the steps of a moment, once for all targets."""
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
        """Detach the programs among the users, together with the other programs."""
        for program in self._case.programs:
            self._go(program.name)

    def end(self) -> None:
        """Unregister all users."""
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
        """Address of a user's private trampoline; 0 if no site shows it.

        A site whose only user it is calls it: after the user's step, or after the programs are detached.
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
    """Target of the call in a target's recorded bytes; 0 if there is none."""
    site = code[target.patch_offset : target.patch_offset + SITE_SIZE]
    if len(site) < SITE_SIZE or site[0] != CALL:
        return 0
    after = target.addr + target.patch_offset + SITE_SIZE
    return after + int.from_bytes(site[1:], "little", signed=True)
