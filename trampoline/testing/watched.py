"""A laboratory whose functions and programs tell what happens in them, in the words of the reference model."""

from collections.abc import Sequence

from emu.kernel.ftrace import FtraceOps, FtraceOpsFlag
from emu.kernel.livepatch import LivePatch
from emu.task import Task, TaskState
from emu.vcpu import StopReason, Vcpu
from trampoline.attach import AttachType
from trampoline.designs import Factory
from trampoline.flavour import Flavour
from trampoline.generator import Boot
from trampoline.lab import Tracing
from trampoline.link import Link, MultiLink
from trampoline.prog import BpfProg, ProgContext
from trampoline.testing.functions import Prototype, Traced, add_functions
from trampoline.testing.reference import Happening, Original, Phase, Program, Ran, Tracer

TOLD = "tramplab_testing_original"
_IS_RETURN = 1 << 63
"""Of the word that counts arguments, since sessions are there (7.0)."""


class WatchedLab:
    """A kernel with some traced functions. ``happened`` collects what runs, in order."""

    def __init__(
        self,
        prototypes: Sequence[Prototype],
        *,
        flavour: Flavour,
        design: str | Factory,
        vcpus: int = 2,
        counts: bool,
        boot: Boot | None = None,
        metadata: str | None = None,
    ) -> None:
        self.lab = Tracing(flavour, design=design, vcpus=vcpus, boot=boot, metadata=metadata, counting="off")
        self._counts = counts
        kernel = self.lab.kernel
        kernel.kallsyms.add(TOLD, kernel.machine.host_call(TOLD, self._original), 1)
        self.functions: dict[str, Traced] = {}
        self._names: list[str] = []
        self.add(prototypes)
        self.happened: list[Happening] = []
        self._tracers: dict[str, FtraceOps] = {}
        self._patches: dict[str, LivePatch] = {}

    def add(self, prototypes: Sequence[Prototype]) -> None:
        """Put more functions into the kernel."""
        for traced in add_functions(self.lab, prototypes, TOLD, first=len(self._names)):
            self.functions[traced.name] = traced
            self._names.append(traced.name)

    # Programs and links ---------------------------------------------------------------------------------------------

    def load(self, program: Program, *, multi: bool, sleepable: bool) -> BpfProg:
        """A program that tells what it sees."""

        def run(context: ProgContext) -> int:
            self.happened.append(self._seen(program, context))
            if program.calls:
                callee = self.functions[program.calls]
                registers, stack = callee.travel((1,) * callee.model.nr_regs)
                self.lab.call(callee.address, *registers, stack_args=stack, cpu=context.vcpu.index)
            return program.result

        kind = f"{program.kind}_multi" if multi else str(program.kind)
        return self.lab.prog(kind, run, name=f"watched{program.number}", sleepable=sleepable)

    def _seen(self, program: Program, context: ProgContext) -> Ran:
        machine = self.lab.kernel.machine
        traced = next(one for one in self.functions.values() if one.address == context.ip)
        behind = program.kind is AttachType.FEXIT or bool(machine.read_u64(context.address - 8) & _IS_RETURN)
        ret: int | None = None
        if program.kind is not AttachType.FENTRY:
            # In a session's entry, and in fmod_ret, the word is what was returned so far: all of it.
            word = machine.read_u64(context.address + 8 * context.count)
            ret = traced.cut(word) if behind else word
        size = sum(arg.slots for arg in traced.model.args)
        slots = [machine.read_u64(context.address + 8 * n) for n in range(size)]
        return Ran(
            program.number,
            Phase.EXIT if behind else Phase.ENTRY,
            traced.arguments(slots),
            context.ip,
            context.cookie,
            ret,
            context.count if self._counts else None,
        )

    def attach(self, prog: BpfProg, names: Sequence[str], cookies: Sequence[int], *, multi: bool) -> Link | MultiLink:
        """Attach as a multi link, or as a plain one to a single function."""
        if multi:
            return self.lab.attach_multi(prog, list(names), cookies=list(cookies))
        (name,), (cookie,) = names, cookies
        return self.lab.attach(prog, name, cookie=cookie)

    # Others ---------------------------------------------------------------------------------------------------------

    def trace(self, name: str) -> None:
        """Register a function tracer on a function."""
        site = self.lab.kernel.function(name).site
        assert site is not None

        def told(*_: object) -> None:
            self.happened.append(Tracer(name))

        ops = FtraceOps(f"tracer of {name}", told, FtraceOpsFlag(0), filter={site})
        self.lab.kernel.ftrace.register_ftrace_function(ops)
        self._tracers[name] = ops

    def untrace(self, name: str) -> None:
        """Take it off."""
        self.lab.kernel.ftrace.unregister_ftrace_function(self._tracers[name])
        del self._tracers[name]

    def patch(self, name: str) -> None:
        """Livepatch a function."""
        patch = LivePatch(self.lab.kernel, name, f"{name}_patched")
        patch.enable()
        self._patches[name] = patch

    def unpatch(self, name: str) -> None:
        """Let it be called again."""
        self._patches[name].disable()
        del self._patches[name]

    # Calls ----------------------------------------------------------------------------------------------------------

    def call(self, name: str, words: Sequence[int], cpu: int = 0) -> tuple[list[Happening], int]:
        """What happens in a call, and what it returns."""
        traced = self.functions[name]
        registers, stack = traced.travel(words)
        before, self.happened = self.happened, []
        try:
            call = self.lab.call(traced.address, *registers, stack_args=stack, cpu=cpu)
            return self.happened, self._value(traced, call.value)
        finally:
            self.happened = before

    def start(self, name: str, words: Sequence[int], cpu: int) -> tuple[list[Happening], Task]:
        """A call as a task of its own, which sleeps or is done when this returns."""
        traced = self.functions[name]
        registers, stack = traced.travel(words)
        assert not stack, "a task's function takes its arguments in registers"
        task = self.lab.kernel.task(f"calls {name}", traced.address, *registers)
        return self._run(task, cpu), task

    def wake(self, task: Task, cpu: int) -> tuple[list[Happening], int]:
        """The rest of such a call, and what it returns."""
        task.wake()
        happened = self._run(task, cpu)
        return happened, self.end(task)

    def end(self, task: Task) -> int:
        """Forget a call that has returned; gives what it returned."""
        assert task.state is TaskState.DONE, task
        self.lab.kernel.remove_task(task)
        return self._value(self.functions[task.name.removeprefix("calls ")], task.value)

    def _run(self, task: Task, cpu: int) -> list[Happening]:
        before, self.happened = self.happened, []
        try:
            stop = self.lab.kernel.machine.vcpus[cpu].run(task)
            assert stop.reason is not StopReason.PREEMPTED, task
            return self.happened
        finally:
            self.happened = before

    @staticmethod
    def _value(traced: Traced, rax: int) -> int:
        return rax & (1 << 8 * (traced.model.ret_size or 8)) - 1

    def _original(self, vcpu: Vcpu) -> None:
        number = vcpu.regs.rax
        patched = bool(number >> 63)
        name = self._names[~number & (1 << 64) - 1 if patched else number]
        self.happened.append(Original(name, patched))

    def close(self) -> None:
        """Give the machine back."""
        self.lab.close()
