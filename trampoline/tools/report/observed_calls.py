"""A workload's calls, made and recorded for a report, with the code that they executed."""

from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from emu.counting.counts import InstructionCounts
from emu.recording import Recording, record
from trampoline.bpf.errors import KernelError, TrampolineError, errno_name
from trampoline.lab.workload import ReadyCall, ReadyWorkload, Workload, open_workload
from trampoline.tools.debugger import StackFrame
from trampoline.tools.report.executed_code import ExecutedCode, executed_code
from trampoline.tools.report.stack_drawing import stack_at_program


@dataclass(frozen=True, slots=True)
class ObservedCall:
    """One call: its result (as a C value), its costs, and the code that it executed, in order of first execution."""

    text: str
    cpu: int
    value: int | None
    counts: InstructionCounts
    recording: Recording
    code: tuple[ExecutedCode, ...]
    stack: tuple[StackFrame, ...] = ()
    """Stack frames at the entry of the first program, the caller's first."""

    @property
    def name(self) -> str:
        """Name of the call in a baseline."""
        return " ".join(self.text.split())


@dataclass(frozen=True, eq=False, slots=True)
class ObservedTarget:
    """A target in one design on one kernel.

    ``recording`` covers attaching and all calls. If the design refuses it, only ``error`` is set.
    """

    title: str
    design: str
    flavour: str
    config: str
    attached: tuple[str, ...] = ()
    calls: tuple[ObservedCall, ...] = ()
    recording: Recording = field(default_factory=partial(Recording, 0))
    error: str | None = None


def observe(options: Workload, *, stacks: bool = False) -> ObservedTarget:
    """Attach a target's programs, make its calls in order, and record both. ``stacks``: capture each call's stack.

    Raises TrampolineError for a call that faults, with the source line if it is a program's; and what ``open_workload``
    raises.
    """
    if options.live:
        raise TrampolineError("--live: a report records calls that run one after the other")
    with open_workload(replace(options, live=True)) as ready:
        lab = ready.lab
        with record(lab.kernel) as whole:
            ready.attach()
            calls = [_observed(ready, call) for call in ready.calls]
        if stacks:
            calls = [
                replace(made, stack=stack_at_program(lab, call)) for made, call in zip(calls, ready.calls, strict=True)
            ]
        return ObservedTarget(
            title=title_of(options),
            design=options.design,
            flavour=lab.release.name,
            config=options.config,
            attached=tuple(ready.attached()),
            calls=tuple(calls),
            recording=whole,
        )


def observe_all(variants: list[Workload], *, stacks: bool = False) -> list[ObservedTarget]:
    """Observe each variant; one that is refused has an error. Raises KernelError if the first is refused."""
    observed = [observe(variants[0], stacks=stacks)]
    for options in variants[1:]:
        try:
            observed.append(observe(options, stacks=stacks))
        except KernelError as error:
            name, release = options.design, options.flavour or observed[0].flavour
            observed.append(
                ObservedTarget(observed[0].title, name, release, options.config, error=errno_name(error.errno))
            )
    return observed


def title_of(options: Workload) -> str:
    """Short title of a workload: programs and target."""
    if options.is_object:
        return Path(options.target).name
    name = str(options.target)
    name = name.partition("(")[0].split()[-1] if "(" in name else name
    return f"{' + '.join(options.programs or ('fentry',))} on {name}"


def _observed(ready: ReadyWorkload, call: ReadyCall) -> ObservedCall:
    with record(ready.lab.kernel) as recording:
        made = ready.call(call)
    assert made.counts is not None
    code = tuple(executed_code(ready.lab.kernel, recording))
    return ObservedCall(call.text, call.cpu, call.model.returned(made.value), made.counts, recording, code)
