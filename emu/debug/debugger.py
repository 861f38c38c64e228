"""A kernel under a debugger: forwards and backwards, thread by thread, with what is to be seen at each position."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

from asm.decode import decode
from asm.errors import AsmError
from asm.image import Image
from emu.counting import Method, counter_for
from emu.debug.breakpoints import AtEvent, Breakpoint
from emu.debug.errors import DebugError
from emu.debug.frames import Activation, Frame, Slot, activations
from emu.debug.goals import GOALS
from emu.debug.moves import Adopt, Begin, Go, Move, Place, Preempt, SetRegister, Wake, WriteMemory
from emu.debug.record import Record
from emu.debug.search import Search
from emu.debug.stop import Stop, StopReason
from emu.debug.threads import OperationThread, TaskThread, Thread
from emu.debug.views import CallSite, CodeLine, CpuState, PatchedBytes
from emu.errors import EmuError
from emu.events import Event
from emu.kernel.kernel import Kernel
from emu.kernel.rcu import RcuFlavour
from emu.layout import ADDRESS_MASK
from emu.registers import SAVED
from emu.task import TaskState

_REGISTERS = (*SAVED[:-1], "eflags", "gs_base")
OUTSIDE = "(outside)"
"""Where the outermost function returns to."""
_LONGEST = 15
"""Bytes of an instruction."""


class Debugger:
    """Threads of one kernel, moved one at a time. Until ``close`` nobody else may change the kernel.

    ``roots``: Python objects beside the kernel that operations change. Counters are taken out of the vCPUs meanwhile,
    and grace periods end when the user, or ``run``, lets them. DebugError for what makes no sense where things stand.
    """

    IS_CACHE = True  # a checkpoint of Python's objects leaves it alone

    def __init__(self, kernel: Kernel, roots: Iterable[object] = ()) -> None:
        self.kernel = kernel
        kernel.rcu.settle()
        self._was_automatic, kernel.rcu.automatic = kernel.rcu.automatic, False
        self._methods: list[Method | None] = []
        for vcpu in kernel.machine.vcpus:
            counter = vcpu.counter
            self._methods.append(cast(Method, counter.method) if counter is not None else None)
            if counter is not None:
                vcpu.settle_counter()
                vcpu.collect_counts()
                vcpu.counter = None
                counter.remove()
        self._record = Record(kernel, roots)
        self._search = Search(self, self._record)
        self._current: Thread | None = None
        self._breakpoints: list[Breakpoint] = []
        self._numbers = 0
        self._is_closed = False
        self.notes: dict[Breakpoint, object] = {}
        """What breakpoints remember during a run."""

    # Who ------------------------------------------------------------------------------------------------------------

    @property
    def threads(self) -> tuple[Thread, ...]:
        """Those that exist at this position."""
        return tuple(self._record.threads)

    @property
    def thread(self) -> Thread:
        """The current one. DebugError where there is none yet."""
        threads = self._record.threads
        if not threads:
            raise DebugError("nobody is there to be moved: call a function")
        if self._current not in threads:
            self._current = threads[-1]
        assert self._current is not None
        return self._current

    def select(self, thread: Thread) -> None:
        """Make a thread the current one."""
        if thread not in self._record.threads:
            raise DebugError(f"{thread.name} does not exist here")
        self._current = thread

    def call(
        self, function: str | int, *args: int, stack_args: Sequence[int] = (), cpu: int = 0, name: str = ""
    ) -> Thread:
        """A task that is to call a function on a vCPU, as its callers would; it stands before the first instruction.

        It is the current thread. KernelError (-ENOENT) for an unknown function, DebugError for an unknown vCPU.
        """
        self._check_cpu(cpu)
        address = self.address_of(function)
        name = name or (function if isinstance(function, str) else self.symbol(address))
        thread = TaskThread(self._next_number(), name, address, [arg & ADDRESS_MASK for arg in args], stack_args, cpu)
        return self._begin(Begin(thread), thread)

    def operation(self, name: str, do: Callable[[], object]) -> Thread:
        """An operation of process context (attach, detach), which has not begun. It is the current thread.

        It may be run several times: what it changes beside the kernel must be reachable from it or from ``roots``.
        """
        thread = OperationThread(self._next_number(), name, do)
        return self._begin(Begin(thread), thread)

    def end_grace_period(self, flavour: str) -> Thread:
        """End the oldest grace period of a kind (of ``grace_periods``): a thread that runs its callbacks.

        DebugError where none can end.
        """
        kinds = [period.flavour for period in self._record.grace_periods()]
        if flavour not in kinds:
            raise DebugError(f"no grace period of {flavour} can end; {', '.join(kinds) or 'none'} can")
        move = self._record.end_grace_period(RcuFlavour(flavour), self._next_number())
        return self._begin(move, move.thread)

    @property
    def grace_periods(self) -> tuple[str, ...]:
        """The kinds of which a grace period can end now."""
        return tuple(str(period.flavour) for period in self._record.grace_periods())

    def wake(self, thread: Thread) -> None:
        """Let a sleeping task go on."""
        task = self._task_thread(thread)
        if task.task is None or task.task.state is not TaskState.SLEEPING:
            raise DebugError(f"{thread.name} is not asleep")
        self._record.make(Wake(task))

    def preempt(self, thread: Thread) -> None:
        """Take the vCPU from a task."""
        task = self._task_thread(thread)
        if self._record.vcpu_of(task) is None:
            raise DebugError(f"{thread.name} is on no cpu")
        self._record.make(Preempt(task))

    def place(self, thread: Thread, cpu: int) -> None:
        """Let a task that no vCPU runs go on on another one."""
        self._check_cpu(cpu)
        task = self._task_thread(thread)
        if self._record.vcpu_of(task) is not None:
            raise DebugError(f"{thread.name} is on cpu {task.cpu}: preempt it first")
        self._record.make(Place(task, cpu))

    def adopt(self, cpu: int, address: int | None = None) -> None:
        """Let a vCPU see what was written to text: at an address, or all of it, as a serialising instruction does."""
        self._check_cpu(cpu)
        vcpu = self.kernel.machine.vcpus[cpu]
        writes = [write for write in vcpu.pending() if address is None or write.address <= address < write.end]
        if not writes:
            raise DebugError(f"cpu {cpu} has nothing to adopt" + (f" at {address:#x}" if address is not None else ""))
        self._record.make(Adopt(cpu, address))

    def _begin(self, move: Move, thread: Thread) -> Thread:
        self._record.make(move)
        self._current = thread
        return thread

    def _next_number(self) -> int:
        return max((thread.number for thread in self._record.threads), default=0) + 1

    def _check_cpu(self, cpu: int) -> None:
        count = len(self.kernel.machine.vcpus)
        if not 0 <= cpu < count:
            raise DebugError(f"no cpu {cpu}: there are {count}")

    def _task_thread(self, thread: Thread | None) -> TaskThread:
        thread = thread or self.thread
        if thread not in self._record.threads:
            raise DebugError(f"{thread.name} does not exist here")
        if not isinstance(thread, TaskThread):
            raise DebugError(f"{thread.name} is an operation: it has no registers")
        return thread

    # Time -----------------------------------------------------------------------------------------------------------

    @property
    def position(self) -> int:
        """How many moves were made since the start."""
        return self._record.position

    @property
    def end(self) -> int:
        """The last position of the line; behind the present one where we went back."""
        return self._record.timeline.end

    def step(self, n: int = 1) -> Stop:
        """So many instructions of the current thread, or points of an operation; fewer where a breakpoint stops it."""
        thread = self.thread
        if n == 1:
            return self._search.one(thread)
        if n < 1:
            raise DebugError(f"{n} steps")
        return self._search.forward(thread, self._breakpoints, limit=n, reason=StopReason.STEP)

    def step_over(self) -> Stop:
        """As ``step``, but a call is one step, and so is a repeated instruction."""
        return self._search.over(self.thread, self._breakpoints)

    def step_out(self) -> Stop:
        """To where the present function returns to; an operation: to its end."""
        return self._search.out(self.thread, self._breakpoints)

    def run(self, limit: int | None = None) -> Stop:
        """Until a breakpoint stops it, the current thread ends (where it has: the next one), or it faults.

        While the thread waits for something, others go on; grace periods end and sleepers wake where nobody else can.
        """
        return self._search.run(self._breakpoints, limit)

    def run_to(self, what: str) -> Stop:
        """As ``run``, to the next "phase", "program", "call", "patch" or "event"."""
        return self._search.run([*self._breakpoints, self.goal(what)], None, reason=StopReason.STEP)

    def goal(self, what: str) -> Breakpoint:
        """What ``run_to`` looks for. DebugError for an unknown goal."""
        if what == "event":
            return AtEvent()
        if what == "patch":
            return AtEvent("TextPatched")
        if what not in GOALS:
            raise DebugError(f"no goal {what!r}; there are phase, program, call, patch, event")
        return GOALS[what]()

    def back(self, n: int = 1) -> Stop:
        """Back before the last ``n`` steps of whichever threads; what was changed behind them is undone as well."""
        return self._search.back(n)

    def back_over(self) -> Stop:
        """As ``back``, but a call that has returned is one step."""
        return self._search.back_over(self.thread)

    def back_out(self) -> Stop:
        """Back to before the call of the present function; an operation: to its begin."""
        return self._search.back_out(self.thread)

    def run_back(self) -> Stop:
        """Back to the last position where a breakpoint was met, or to the start."""
        return self._search.run_back(self._breakpoints)

    def goto(self, position: int) -> Stop:
        """The state at a position from 0 to ``end``. DebugError for any other."""
        self._record.goto(position)
        self._follow_current()
        return self.stopped(StopReason.STEP if position else StopReason.START)

    def interrupt(self) -> None:
        """From another thread of the host, or a signal: the run under way stops soon."""
        self._search.interrupted = True

    def stopped(self, reason: StopReason, message: str = "", breakpoint: Breakpoint | None = None) -> Stop:
        """A Stop here."""
        events = self._record.events
        event = None
        if events:
            last = bisect_right(events, self.position, key=lambda found: found[0]) - 1
            event = events[last][1] if last >= 0 and events[last][0] == self.position else None
        threads = self._record.threads
        return Stop(reason, self.thread if threads else None, self.position, breakpoint, event, message)

    def _follow_current(self) -> None:
        """Make the thread that made the last step the current one."""
        if self.position:
            move, _ = self._record.timeline.before(self.position)
            if isinstance(move, Go):
                self._current = move.thread

    # Where to stop --------------------------------------------------------------------------------------------------

    @property
    def breakpoints(self) -> tuple[Breakpoint, ...]:
        """All of them, in the order in which they were added."""
        return tuple(self._breakpoints)

    def add(self, breakpoint: Breakpoint) -> Breakpoint:
        """Stop runs there. Equal breakpoints are one. DebugError, KernelError where it can't be."""
        breakpoint.check(self)
        if breakpoint not in self._breakpoints:
            self._breakpoints.append(breakpoint)
        return breakpoint

    def remove(self, breakpoint: Breakpoint) -> None:
        """Stop there no more."""
        if breakpoint not in self._breakpoints:
            raise DebugError("there is no such breakpoint")
        self._breakpoints.remove(breakpoint)

    # What is seen and changed ---------------------------------------------------------------------------------------

    @property
    def rip(self) -> int:
        """Where the current thread is; 0 for an operation."""
        thread = self.thread
        return self._record.register(thread) if isinstance(thread, TaskThread) else 0

    def registers(self, thread: Thread | None = None) -> dict[str, int]:
        """General registers, rip, eflags and gs_base of a task, the current one unless said otherwise."""
        task = self._task_thread(thread)
        vcpu = self._record.vcpu_of(task)
        if vcpu is not None:
            values = vcpu.regs.save()
        else:
            assert task.task is not None
            values = list(task.task.registers)
            values[SAVED.index("rip")] = self._record.register(task)
        assert task.cpu is not None
        gs_base = self.kernel.machine.vcpus[task.cpu].gs_base
        return dict(zip(_REGISTERS, [*values, gs_base], strict=True))

    def set_register(self, name: str, value: int, thread: Thread | None = None) -> None:
        """Change a register, as a move."""
        if name not in _REGISTERS:
            raise DebugError(f"no register {name!r}; there are {', '.join(_REGISTERS)}")
        if not 0 <= value <= ADDRESS_MASK:
            raise DebugError(f"{value:#x} is no unsigned 64-bit number")
        task = self._task_thread(thread)
        if name == "gs_base" and self._record.vcpu_of(task) is None:
            raise DebugError(f"{task.name} is on no cpu: gs_base is a cpu's")
        self._record.make(SetRegister(task, "rflags" if name == "eflags" else name, value))

    def read(self, address: int, size: int) -> bytes:
        """Guest memory; text as the current thread's vCPU sees it. NotMapped."""
        thread = self.thread if self._record.threads else None
        cpu = thread.cpu if thread is not None and thread.cpu is not None else 0
        return self.kernel.machine.vcpus[cpu].read_code(address, size)

    def write(self, address: int, data: bytes) -> None:
        """Change guest memory, as a move; text too, which every vCPU sees at once. NotMapped."""
        self.kernel.machine.read(address, len(data))
        self._record.make(WriteMemory(address, bytes(data)))

    def address_of(self, where: int | str) -> int:
        """The address of a symbol, ``symbol+offset``, or the address itself. KernelError (-ENOENT)."""
        if isinstance(where, int):
            return where
        name, plus, offset = where.partition("+")
        try:
            return self.kernel.kallsyms.address(name) + (int(offset, 0) if plus else 0)
        except ValueError:
            raise DebugError(f"{where!r} is not symbol+offset") from None

    def symbol(self, address: int) -> str:
        """The function or image at an address, and the offset there; the address where nothing is known."""
        machine = self.kernel.machine
        if address == machine.host_calls.return_address:
            return OUTSIDE
        image = machine.images.at(address)
        name = machine.function_at(address) or (image.name if image is not None else None)
        if name is None:
            return f"{address:#x}"
        found = self.kernel.kallsyms.at(address)
        start = found.address if found is not None and found.name == name else None
        if start is None:
            stubs = machine.host_calls
            start = image.address if image is not None else address - (address - stubs.address) % 16
        return f"{name}+{address - start:#x}" if address != start else name

    def phase(self, address: int | None = None) -> str | None:
        """The phase of the instruction at an address, the current one unless said otherwise."""
        return self.kernel.machine.images.phase(self.rip if address is None else address)

    def addresses_of_phase(self, phase: str) -> list[int]:
        """All instructions of a phase in the images that are known now."""
        return [
            image.address + line.offset
            for image in self.kernel.machine.images.listed()
            for line in image.lines
            if line.phase == phase
        ]

    def code(self, around: int | None = None, lines: int = 20) -> list[CodeLine]:
        """The instructions around an address, the current one unless said otherwise; of its image alone."""
        address = self.rip if around is None else around
        image = self.kernel.machine.images.at(address)
        if image is None:
            return self._bare_code(address, lines)
        starts = [image.address + line.offset for line in image.lines]
        middle = max(bisect_right(starts, address) - 1, 0)
        first = max(min(middle - lines // 2, len(starts) - lines), 0)
        return [self.code_line(at, image) for at in starts[first : first + lines]]

    def code_line(self, address: int, image: Image | None = None) -> CodeLine:
        """One instruction."""
        image = image or self.kernel.machine.images.at(address)
        line = image.line_at(address) if image is not None else None
        if image is None or line is None:
            return self._bare_code(address, 1)[0]
        code = self.read(address, line.size)
        text = line.text
        if code != image.code_of(line):
            text = self._text_of(code, address)
        phase = line.phase.value if line.phase is not None else None
        patch = self._patch_of(address, line.size)
        return CodeLine(address, code, text, line.comment, phase, self.symbol(address), patch)

    def _text_of(self, code: bytes, address: int) -> str:
        """Disassembly of an instruction that is not the image's: it was patched."""
        try:
            first = decode(code, address)[0]
        except AsmError:
            return "int3" if code[:1] == b"\xcc" else code.hex(" ")
        if first.mnemonic in ("call", "jmp") and first.operands.startswith("0x"):
            return f"{first.mnemonic} {self.symbol(int(first.operands, 16))}"
        return first.text

    def _bare_code(self, address: int, lines: int) -> list[CodeLine]:
        found: list[CodeLine] = []
        while len(found) < lines:
            size = _LONGEST
            code = b""
            while size and not code:
                try:
                    code = self.read(address, size)
                except EmuError:
                    size -= 1
            one = self._first(code, address)
            if one is None:
                break
            found.append(CodeLine(address, one[0], one[1], "", None, self.symbol(address)))
            address += len(one[0])
        return found

    def _first(self, code: bytes, address: int) -> tuple[bytes, str] | None:
        for size in range(1, len(code) + 1):
            try:
                one = decode(code[:size], address)
            except AsmError:
                continue
            return code[:size], one[0].text
        return None

    def _patch_of(self, address: int, size: int) -> str:
        """What is being done to the bytes of an instruction, in words; nothing where nobody patches it."""
        parts = []
        for cpu in self.vcpus():
            for part in cpu.pending:
                if part.address < address + size and address < part.address + len(part.new):
                    sees = "sees the new" if part.sees_new else "may see the old"
                    offset = part.address - address
                    at = f"byte {offset}" if len(part.new) == 1 else f"bytes {offset} to {offset + len(part.new) - 1}"
                    parts.append(f"cpu {cpu.index} {sees} {at} ({part.old.hex(' ')} -> {part.new.hex(' ')})")
        return "; ".join(parts)

    def backtrace(self, thread: Thread | None = None) -> list[CallSite]:
        """The calls that led to where a task is, innermost first; each with the address where it goes on."""
        task = self._task_thread(thread)
        return [
            CallSite(one.rip, self.symbol(one.rip), one.end, self.phase(one.rip - bool(level)))
            for level, one in enumerate(self.activations(task))
        ]

    def activations(self, thread: Thread | None = None) -> list[Activation]:
        """The functions of a task that have not returned, innermost first, with what is known of their frames."""
        task = self._task_thread(thread)
        if task.is_done:
            return []
        rip, rsp, rbp = (self._record.register(task, name) for name in ("rip", "rsp", "rbp"))
        return list(activations(self.kernel, rip, rsp, rbp))

    def frame(self, thread: Thread | None = None, level: int = 0) -> Frame:
        """The stack frame of a function that has not returned, slot by slot: 0 is where the task is, 1 its caller.

        DebugError where there is no such frame. A task that has ended has one without slots.
        """
        found = self.activations(thread)
        if not found and not level:
            return Frame("", "rsp", ())
        if not 0 <= level < len(found):
            raise DebugError(f"no frame {level}: there are {len(found)}")
        return self._frame_of(found[level])

    def _frame_of(self, one: Activation) -> Frame:
        if one.end is None:
            return Frame(self.symbol(one.rip), "rsp", ())
        names, slots = one.named(), list[Slot]()
        is_rbp = one.depth is not None and one.depth.rbp is not None
        base = one.rbp if is_rbp else one.rsp
        top = max([one.end, (one.return_slot or 0) + 8, *(address + 8 for address in names)])
        for address in range(top - 8, one.rsp - 8, -8):
            value, name = self.kernel.machine.read_u64(address), names.get(address, "")
            if address == one.return_slot or name.startswith("return address"):
                name = f"{name or 'return address'} → {self.symbol(value)}"
            slots.append(Slot(address, address - base, name, value, self.words(value, name, one)))
        return Frame(self.symbol(one.rip), "rbp" if is_rbp else "rsp", tuple(slots))

    def words(self, value: int, name: str = "", where: Activation | None = None) -> str:
        """What a value is, in words: a symbol, an object in guest memory; empty where nothing is known. ``name``: of
        the slot that holds it, ``where``: of that slot's frame.
        """
        machine = self.kernel.machine
        if machine.function_at(value) is not None or machine.images.at(value) is not None:
            return self.symbol(value)
        for slab in (self.kernel.slab, self.kernel.vmalloc):
            found = slab.name_at(value)
            if found is not None:
                return found
        return ""

    @property
    def events(self) -> Sequence[tuple[int, Event]]:
        """What happened up to here, each with the position behind its move."""
        events = self._record.events
        return events[: bisect_right(events, self.position, key=lambda found: found[0])]

    def vcpus(self) -> list[CpuState]:
        """Every vCPU: its thread, where it is, and text that it has not adopted."""
        found = []
        for vcpu in self.kernel.machine.vcpus:
            thread = next(
                (one for one in self._record.threads if isinstance(one, TaskThread) and one.task is vcpu.task), None
            )
            pending = tuple(
                PatchedBytes(write.address, write.old, write.new, write.serial in vcpu.view.seen)
                for write in vcpu.pending()
            )
            found.append(CpuState(vcpu.index, thread, vcpu.regs.rip if thread is not None else 0, pending))
        return found

    def close(self) -> None:
        """Let go of the kernel as it stands: tasks that are under way stay where they are."""
        if self._is_closed:
            return
        self._is_closed = True
        self._record.close()
        for vcpu, method in zip(self.kernel.machine.vcpus, self._methods, strict=True):
            if vcpu.task is not vcpu.idle:
                vcpu.yield_task()
            if method is not None:
                vcpu.counter = counter_for(vcpu.uc, vcpu.read_code, method)
        self.kernel.rcu.automatic = self._was_automatic
        self.kernel.rcu.settle()

    def __enter__(self) -> "Debugger":
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()
