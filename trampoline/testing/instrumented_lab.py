"""A laboratory whose functions and programs tell what happens in them, in the words of the reference model."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from emu.kernel.ftrace.livepatch import LivePatch
from emu.kernel.ftrace.ops import FtraceOps, FtraceOpsFlag
from emu.kernel.structs import PERCPU, PREEMPT_ENABLED, task_struct
from emu.kernel.text.functions import FunctionText
from emu.kernel.text.text_poke import VECTOR_SIZE
from emu.machine.registers import SAVED, RegisterBatch
from emu.machine.task import Task, TaskState
from emu.machine.vcpu import RunStopReason, Vcpu
from trampoline.bpf.boot import Boot
from trampoline.bpf.prog import BpfProg, ProgContext, Uses
from trampoline.bpf.uapi import AttachType
from trampoline.designs import DesignChoice
from trampoline.lab import Lab
from trampoline.lab.links.link import Link
from trampoline.releases.kernel_release import KernelRelease
from trampoline.testing.reference_model import (
    Direct,
    Happening,
    ModelProgram,
    Original,
    ProgramRun,
    RunPhase,
    Tracer,
    kind_on,
)
from trampoline.testing.traced_functions import Prototype, TracedFunction, add_functions
from trampoline.tramp_links import TrampProgType

TOLD, DIRECT_TOLD = "tramplab_testing_original", "tramplab_testing_direct"
DIRECT_CALLERS = ("tramplab_direct_0", "tramplab_direct_1")
"""Code that a site may reach as somebody else's direct caller."""
AREA, COUNTS = "tramplab_testing_area", "tramplab_testing_counts"
"""Code with more nops to be patched than one batch takes, and what adds 1 to the value that it returns."""
AREA_SITES = VECTOR_SIZE + 4
_NAME = "watched"
_IS_RETURN = 1 << 63
"""Of the word that counts arguments, since sessions are there (7.0)."""
_KEPT = ("rbx", "rbp", "r12", "r13", "r14", "r15")
"""Registers that a call leaves alone."""
_CLOBBERED = ("rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11")
"""Registers that a program, as any function, may change, with rax."""
_RUBBISH = [0xDEAD_0000_BEEF_0001 + 0x1_0000_0101 * n for n in range(len(_CLOBBERED))]
_STACK_RUBBISH = bytes(range(0x80, 0x100)) * 16
_PATTERN = [0xC0DE_5AFE_0000_1001 + 0x11_0001_0010_0101 * n for n in range(len(_KEPT))]
_CALL_DEPTH = PERCPU.offset("call_depth")
_CREDIT, _ACCOUNTED = 1 << 63, 0x3F
"""The call-depth counter where the return stack was just filled, and its upper bits behind an accounted call: each
shifts its sign in.
"""
_PREEMPT_COUNT = PERCPU.offset("preempt_count")
_READERS = {
    field: (task_struct.offset(field), size)
    for field, size in (("bpf_ctx", 8), ("migration_disabled", 2), ("trc_reader_nesting", 4))
}
_SECTIONS = {field: _READERS[field] for field in ("trc_reader_nesting", "migration_disabled")}


class WatchedLab:
    """A kernel with some traced functions. ``happened`` collects what runs, in order."""

    def __init__(
        self,
        prototypes: Sequence[Prototype],
        *,
        release: KernelRelease,
        design: DesignChoice,
        vcpus: int = 2,
        counts: bool,
        config: str = "voluntary",
        boot: Boot | None = None,
        metadata: str | None = None,
    ) -> None:
        self.lab = Lab(release, config, design=design, vcpus=vcpus, boot=boot, metadata=metadata, counting="off")
        self._counts = counts
        kernel = self.lab.kernel
        kernel.kallsyms.add(TOLD, kernel.machine.host_call(TOLD, self._original), 1)
        kernel.kallsyms.add(DIRECT_TOLD, kernel.machine.host_call(DIRECT_TOLD, self._direct), 1)
        kernel.add_functions(
            *(
                FunctionText(name, f"mov eax, {number}\ncall {DIRECT_TOLD}\nret", traceable=False)
                for number, name in enumerate(DIRECT_CALLERS)
            )
        )
        kernel.add_functions(
            FunctionText(COUNTS, "inc rax\nret", traceable=False),
            FunctionText(AREA, "\n".join(["xor eax, eax", *["nop5"] * AREA_SITES, "ret"]), traceable=False),
        )
        again = FunctionText("tramplab_testing_sleep", "push rax\ncall schedule\npop rax\nret", traceable=False)
        self._sleeps_again = kernel.add_functions(again)[0].address
        self.functions: dict[str, TracedFunction] = {}
        self._names: list[str] = []
        self.add(prototypes)
        self.happened: list[Happening] = []
        self.sleeps_in: Callable[[ModelProgram, str], bool] = lambda program, function: False
        """Whether a program goes to sleep in a task's call of a function."""
        self._function_of: dict[tuple[int, int], str] = {}
        """By a program that does not read where it is, and its cookie there."""
        self._patches: dict[str, LivePatch] = {}
        self._kept = [RegisterBatch(vcpu.regs.engine, _KEPT) for vcpu in kernel.machine.vcpus]
        self._clobbered = [RegisterBatch(vcpu.regs.engine, _CLOBBERED) for vcpu in kernel.machine.vcpus]
        self.counters: set[int] = set()
        """Per-CPU offsets at which programs counted that they run, of those too that are gone."""
        self.accounted = False
        """Whether a call of a program was accounted since ``fill_return_stack``."""
        self._running: list[bool] = []
        """Whether each program is sleepable that runs now, the innermost last."""

    def add(self, prototypes: Sequence[Prototype]) -> None:
        """Put more functions into the kernel."""
        for traced in add_functions(self.lab, prototypes, TOLD, first=len(self._names)):
            self.functions[traced.name] = traced
            self._names.append(traced.name)

    # Programs and links ---------------------------------------------------------------------------------------------

    def load(self, program: ModelProgram, *, multi: bool, sleepable: bool) -> BpfProg:
        """A program that tells what it sees, and leaves rubbish in the registers that it may change."""

        def run(context: ProgContext) -> int:
            self._running.append(sleepable)
            try:
                return self._run_program(program, context)
            finally:
                self._running.pop()

        kind = f"{program.kind}_multi" if multi else str(program.kind)
        reads = program.reads
        uses = Uses(
            func_ip="ip" in reads,
            arg_cnt="count" in reads,
            run_ctx="cookie" in reads,
            session_cookie=program.session,
        )
        prog = self.lab.prog(kind, run, name=f"{_NAME}{program.number}", sleepable=sleepable, uses=uses)
        self.counters.add(prog.active)
        return prog

    def _run_program(self, program: ModelProgram, context: ProgContext) -> int:
        vcpu = context.vcpu
        depth = context.kernel.machine.read_u64(context.kernel.percpu_areas[vcpu.index] + _CALL_DEPTH)
        self.accounted |= depth >> 58 == _ACCOUNTED
        self._check_section(program, vcpu)
        traced, seen = self._seen(program, context)
        self.happened.append(seen)
        if program.session and seen.phase is RunPhase.ENTRY:
            context.kernel.machine.write_u64(_session_cookie(context), program.number)
        if program.calls:
            callee = self.functions[program.calls]
            registers, stack = callee.travel(callee.distinct())
            self.lab.call(callee.address, *registers, stack_args=stack, cpu=vcpu.index)
            program_again = self._seen(program, context, keeps=seen.phase is RunPhase.ENTRY)[1]
            assert program_again == seen, f"after a nested call {program_again}, not {seen}"
            self._check_section(program, vcpu)
        self._clobbered[vcpu.index].write(_RUBBISH)
        in_task = vcpu.task is not vcpu.idle and len(self._running) == 1
        if in_task and self.sleeps_in(program, traced.name):
            # As if it called schedule() once more before it returns.
            for _ in range(1, program.sleeps):
                vcpu.regs.rsp -= 8
                context.kernel.machine.write_u64(vcpu.regs.rsp, self._sleeps_again)
            vcpu.sleep()
        return program.result

    def _check_section(self, program: ModelProgram, vcpu: Vcpu) -> None:
        """While a program runs its task is in the read section of its kind, as often as programs of that kind run, and
        can't migrate where the section alone would let it.
        """
        kernel = self.lab.kernel
        config, task = kernel.config, vcpu.task.address
        sleepable = sum(self._running)
        plain = len(self._running) - sleepable
        pinned = sleepable if config.dont_migrate else sleepable + plain
        held = {field: kernel.machine.read(task + offset, size) for field, (offset, size) in _SECTIONS.items()}
        for field, least in (("trc_reader_nesting", sleepable), ("migration_disabled", pinned)):
            value = int.from_bytes(held[field], "little")
            assert value >= least, f"program {program.number} runs with {field} {value:#x}, not {least}"
        count = kernel.machine.read_u32(kernel.percpu_areas[vcpu.index] + _PREEMPT_COUNT) - PREEMPT_ENABLED
        least = plain if config.preempt_count else 0
        assert count >= least, f"program {program.number} runs with preempt_count {count:#x}, not {least}"
        # Who may sleep must be let.
        assert plain or not count, f"sleepable program {program.number} runs with preempt_count {count:#x}"

    def _seen(
        self, program: ModelProgram, context: ProgContext, *, keeps: bool = False
    ) -> tuple[TracedFunction, ProgramRun]:
        """What a program sees, and on which function. ``keeps``: a session's own word is not looked at yet."""
        machine, reads = self.lab.kernel.machine, program.reads
        cookie = context.cookie if "cookie" in reads else None
        if "ip" in reads:
            found = [one for one in self.functions.values() if one.address == context.ip]
            assert found, f"bpf_get_func_ip gives program {program.number} {context.ip:#x}, which is no function"
            traced = found[0]
        else:
            assert cookie is not None
            name = self._function_of.get((program.number, cookie))
            assert name is not None, f"program {program.number} finds the cookie {cookie:#x}, which is nobody's"
            traced = self.functions[name]
        counted = "count" in reads
        word = machine.read_u64(context.address - 8) if counted else 0
        behind = kind_on(program.kind, traced) is TrampProgType.FEXIT or bool(word & _IS_RETURN)
        ret: int | None = None
        if program.kind is not AttachType.TRACE_FENTRY and counted:
            # In a session's entry, and in fmod_ret, the word is what was returned so far: all of it.
            ret = machine.read_u64(context.address + 8 * context.count)
            ret = traced.cut(ret) if behind else ret
        session = None
        if program.session:
            session = 0 if keeps else machine.read_u64(_session_cookie(context))
        size = sum(arg.slots for arg in traced.model.args)
        slots = [machine.read_u64(context.address + 8 * n) for n in range(size)]
        return traced, ProgramRun(
            program.number,
            RunPhase.EXIT if behind else RunPhase.ENTRY,
            traced.arguments(slots),
            context.ip if "ip" in reads else None,
            cookie,
            ret,
            context.count if self._counts and counted else None,
            session,
        )

    def attach(
        self, program: ModelProgram, prog: BpfProg, names: Sequence[str], cookies: Sequence[int], *, multi: bool
    ) -> Link:
        """Attach as a multi link, or as a plain one to a single function."""
        if "ip" not in program.reads:
            for name, cookie in zip(names, cookies, strict=True):
                self._function_of[program.number, cookie] = name
        if multi:
            return self.lab.attach_multi(prog, list(names), cookies=list(cookies))
        (name,), (cookie,) = names, cookies
        return self.lab.attach(prog, name, cookie=cookie)

    def counted(self) -> dict[int, tuple[int, int]]:
        """Misses and counted runs of each program that exists, by its number."""
        programs = self.lab.programs
        return {
            int(prog.name.removeprefix(_NAME)): (programs.misses(prog), programs.runs(prog))
            for prog in programs.loaded.values()
            if prog.name.startswith(_NAME)
        }

    # Others ---------------------------------------------------------------------------------------------------------

    def tracer(self, number: int, names: Sequence[str], flags: FtraceOpsFlag) -> FtraceOps:
        """A function tracer of functions, of all where no names are given; it is not registered yet."""
        at = {self.site(name): name for name in names or self.functions}

        def told(ip: int, *_: object) -> None:
            if ip in at:
                self.happened.append(Tracer(at[ip], number))
            else:
                assert not names, f"a tracer of {', '.join(names)} is told of {ip:#x}"

        return FtraceOps(f"tracer {number}", told, flags, filter=set(at) if names else set())

    def site(self, name: str) -> int:
        """Where a function is patched."""
        site = self.lab.kernel.function(name).site
        assert site is not None
        return site

    def direct_ops(self, names: Sequence[str]) -> FtraceOps:
        """A direct caller of functions that is no trampoline; it is not registered yet."""
        return FtraceOps(f"direct caller of {', '.join(names)}", filter={self.site(name) for name in names})

    def direct(self, ops: FtraceOps, caller: int) -> None:
        """Let its functions reach a direct caller."""
        self.lab.kernel.ftrace.register_ftrace_direct(ops, self._caller(caller))

    def redirect(self, ops: FtraceOps, caller: int) -> None:
        """Let them reach another one."""
        self.lab.kernel.ftrace.modify_ftrace_direct(ops, self._caller(caller))

    def undirect(self, ops: FtraceOps, caller: int) -> None:
        """Take it off, which must be the one that is there."""
        self.lab.kernel.ftrace.unregister_ftrace_direct(ops, self._caller(caller))

    def _caller(self, number: int) -> int:
        return self.lab.kernel.kallsyms.address(DIRECT_CALLERS[number])

    def patch(self, name: str) -> None:
        """Livepatch a function, by the same patch each time."""
        if name not in self._patches:
            self._patches[name] = LivePatch(self.lab.kernel, name, f"{name}_patched")
        self._patches[name].enable()

    def unpatch(self, name: str) -> None:
        """Let it be called again."""
        self._patches[name].disable()

    # Calls ----------------------------------------------------------------------------------------------------------

    def call(self, name: str, words: Sequence[int], cpu: int = 0) -> tuple[list[Happening], int]:
        """What happens in a call, and what it returns."""
        traced = self.functions[name]
        registers, stack = traced.travel(words)
        kept = self._kept[cpu]
        self._dirty(self.lab.kernel.machine.vcpus[cpu].task)
        with self._listening() as happened:
            kept.write(_PATTERN)
            call = self.lab.call(traced.address, *registers, stack_args=stack, cpu=cpu)
            _check_kept(name, kept.read())
        self._check_readers(name, self.lab.kernel.machine.vcpus[cpu].task.address)
        return happened, self._value(traced, call.value)

    def fill_return_stack(self, cpu: int) -> None:
        """Let a CPU's counter say that no call was accounted yet; ``accounted`` tells of those of programs from now
        on."""
        self.lab.kernel.machine.write_u64(self.lab.kernel.percpu_areas[cpu] + _CALL_DEPTH, _CREDIT)
        self.accounted = False

    def start(self, name: str, words: Sequence[int], cpu: int) -> tuple[list[Happening], Task]:
        """A call as a task of its own, which sleeps or is done when this returns."""
        traced = self.functions[name]
        registers, stack = traced.travel(words)
        assert not stack, "a task's function takes its arguments in registers"
        task = self.lab.kernel.task(f"calls {name}", traced.address, *registers)
        self._dirty(task)
        for register, pattern in zip(_KEPT, _PATTERN, strict=True):
            task.registers[SAVED.index(register)] = pattern
        return self._run(task, cpu), task

    def wake(self, task: Task, cpu: int) -> list[Happening]:
        """The rest of such a call, or up to where it sleeps again."""
        task.wake()
        return self._run(task, cpu)

    def end(self, task: Task) -> int:
        """Forget a call that has returned; gives what it returned."""
        assert task.state is TaskState.DONE, task
        name = task.name.removeprefix("calls ")
        _check_kept(name, [task.register(register) for register in _KEPT])
        self._check_readers(name, task.address)
        self.lab.kernel.remove_task(task)
        return self._value(self.functions[name], task.value)

    def _dirty(self, task: Task) -> None:
        """Fill the stack where a task's calls begin: nobody finds zeroes there that he did not write."""
        self.lab.kernel.machine.write(task.first_rsp - len(_STACK_RUBBISH), _STACK_RUBBISH)

    def _run(self, task: Task, cpu: int) -> list[Happening]:
        with self._listening() as happened:
            stop = self.lab.kernel.machine.vcpus[cpu].run(task)
            assert stop.reason is not RunStopReason.PREEMPTED, task
        self.lab.kernel.rcu.settle()
        return happened

    @contextmanager
    def _listening(self) -> Iterator[list[Happening]]:
        before, self.happened = self.happened, []
        try:
            yield self.happened
        finally:
            self.happened = before

    def _check_readers(self, name: str, task: int) -> None:
        """After a call nobody is in a read section, keeps migration off or has a run context."""
        kernel = self.lab.kernel
        for field, (offset, size) in _READERS.items():
            value = int.from_bytes(kernel.machine.read(task + offset, size), "little")
            assert not value, f"after a call of {name} {field} is {value:#x}"
        for area in kernel.percpu_areas:
            count = kernel.machine.read_u32(area + _PREEMPT_COUNT)
            assert count == PREEMPT_ENABLED, f"after a call of {name} preempt_count is {count:#x}"

    @staticmethod
    def _value(traced: TracedFunction, rax: int) -> int:
        return rax & (1 << 8 * traced.model.ret_size) - 1

    def _original(self, vcpu: Vcpu) -> None:
        number = vcpu.regs.rax
        patched = bool(number >> 63)
        name = self._names[~number & (1 << 64) - 1 if patched else number]
        # Who passes arguments on the stack aligns it for that; telling us took a call.
        aligned = vcpu.regs.rsp % 16 == 0 or not self.functions[name].has_stack_words
        assert aligned, f"{name} is entered with rsp misaligned, at {vcpu.regs.rsp + 8:#x}"
        self.happened.append(Original(name, patched))

    def _direct(self, vcpu: Vcpu) -> None:
        """Behind the return address into the caller's code is the one into the function."""
        address = self.lab.kernel.machine.read_u64(vcpu.regs.rsp + 8)
        function = self.lab.kernel.function_at(address)
        self.happened.append(Direct(function.name if function else hex(address), vcpu.regs.rax))

    def close(self) -> None:
        """Give the machine back."""
        self.lab.close()


def _session_cookie(context: ProgContext) -> int:
    """``bpf_session_cookie``: its distance from the context is the count word's second byte, in slots."""
    machine = context.kernel.machine
    return context.address - 8 * (machine.read_u64(context.address - 8) >> 8 & 0xFF)


def _check_kept(name: str, values: Sequence[int]) -> None:
    for register, value, pattern in zip(_KEPT, values, _PATTERN, strict=True):
        assert value == pattern, f"a call of {name} changed {register} from {pattern:#x} to {value:#x}"
