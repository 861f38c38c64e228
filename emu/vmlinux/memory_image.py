"""A memory image of a booted machine, opened: what is attached in it, and calls of its functions."""

import os
import re
import struct
from dataclasses import dataclass

from emu.machine.address_map import ADDRESS_MASK, PAGE_SIZE
from emu.vmlinux.attachments import Attachment, Attachments
from emu.vmlinux.bug_table import BugTable
from emu.vmlinux.dump import Dump, open_dump
from emu.vmlinux.dump_calls import DumpCalls
from emu.vmlinux.dump_errors import MissingInformation, MissingPage
from emu.vmlinux.dump_notes import CpuState
from emu.vmlinux.dumped_kernel import DumpedKernel, TaskInfo
from emu.vmlinux.errors import NoSymbol, VmlinuxError
from emu.vmlinux.kernel_log import KernelLog
from emu.vmlinux.machine import CpuSetup, KernelMachine
from emu.vmlinux.machine_errors import WouldSleep
from emu.vmlinux.run import KernelMessage, Run

Argument = int | str | bytes
"""A number; "current" (the task's address); "zero:N" (the address of N zeroed bytes on the task's stack); another text
or bytes (the address of a copy on the stack, NUL-ended).
"""

_STACK_GAP = 512
"""Bytes that stay free at the top of the task's stack, for what the kernel keeps there."""
_SCRATCH = 3000
"""Distance of the first argument's bytes from the top of the stack: the call's frames lie below these."""
_USER_REGISTERS = 1024
"""Bytes kept free for ``struct pt_regs`` of a task that is made the current one, whose top of stack is its end."""
_ZERO = re.compile(r"zero:(\d+)")
_PREEMPT_FLAG = 0x80000000
"""``PREEMPT_NEED_RESCHED`` in ``__preempt_count``: inverted, set where nothing waits."""
_TIF_NEED_RESCHED = 1 << 3
_PREEMPTED = 1
"""``SM_PREEMPT``, the argument of ``__schedule()`` for a task that was preempted: it does not sleep in any state."""
_GDT_LIMIT = 127
_IDLE_EXITS = ("ct_idle_exit", "rcu_idle_exit")
_WAITS = (
    "synchronize_rcu", "synchronize_rcu_expedited", "synchronize_rcu_normal", "synchronize_rcu_tasks",
    "synchronize_rcu_tasks_rude", "synchronize_rcu_tasks_trace", "rcu_barrier", "rcu_barrier_tasks",
    "rcu_barrier_tasks_trace", "synchronize_srcu", "synchronize_srcu_expedited", "__wait_rcu_gp",
)  # fmt: skip
"""Functions that wait for grace periods: nothing else runs here, so that these are over at once."""


class BadArgument(VmlinuxError):
    """An argument of a call that can't be passed."""


class NoTask(VmlinuxError):
    """A task that the image does not have, or that can't be made the current one."""


class LockHeld(VmlinuxError):
    """A lock that the CPU held when the image was taken, and that a call needs."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A state of a memory image: changed pages, page tables and the task that runs."""

    pages: dict[int, bytes]
    root: int
    top: int


class MemoryImage:
    """A dump with one CPU running on it; the file is never changed.

    ``cpu``: the number of the CPU whose state is taken. Each call starts from the state in which the image was opened,
    or was left by ``become`` and ``keep``, unless ``fresh=False``. Raises the errors of ``emu.vmlinux.dump_errors`` and
    OSError; IndexError becomes MissingInformation where the dump has no such CPU.
    """

    def __init__(self, source: str | os.PathLike[str] | Dump, *, cpu: int = 0) -> None:
        self.kernel = DumpedKernel(source if isinstance(source, Dump) else open_dump(source))
        self.memory = self.kernel.memory
        self.cpu = cpu
        states = self.kernel.dump.cpus
        count = len(states) or 1
        if not 0 <= cpu < count:
            raise MissingInformation(self.kernel.dump.path, f"no CPU {cpu}: the image has {count}")
        self.state: CpuState | None = states[cpu] if states else None
        self.top = self.memory.u64(self.kernel.top_of_stack(cpu))
        if self.state is not None:
            self.memory.root = self.kernel.root_for(self.state, self.top)
        self.machine = KernelMachine(
            self.memory, self.kernel.code, BugTable(self.memory, self.kernel.symbols, self.kernel.layout), self._setup()
        )
        for name in _WAITS:
            self.machine.host(name)
        if "__schedule" in self.kernel.symbols:
            self.machine.stop_at(self.kernel.symbols["__schedule"], self._schedule)
        self.log = KernelLog(self.memory, self.kernel.symbols, self.kernel.layout)
        self._calm()
        self._opened = self._kept = self.checkpoint()
        self.gaps = list(self.kernel.gaps)
        """What of the kernel's lists the dump lacks."""

    def _setup(self) -> CpuSetup:
        kernel, state, cpu = self.kernel, self.state, self.cpu
        gs_base = kernel.per_cpu_base(cpu)
        if state is not None and state.segments:
            segments = state.segments
            return CpuSetup(
                cpu, gs_base, segments["gdt"].base, segments["gdt"].limit, segments["idt"].base,
                segments["tr"].base, state.control[0], state.control[4],
            )  # fmt: skip
        symbols = kernel.symbols
        return CpuSetup(
            cpu, gs_base, kernel.per_cpu(cpu, "gdt_page"), _GDT_LIMIT, symbols["idt_table"],
            kernel.per_cpu(cpu, "cpu_tss_rw") + kernel.layout.offset("tss_struct", "x86_tss"),
        )  # fmt: skip

    # Tasks ----------------------------------------------------------------------------------------------------------

    @property
    def current(self) -> int:
        """Guest address of the CPU's current task."""
        return self.memory.u64(self.kernel.current(self.cpu))

    def _calm(self) -> None:
        """Process context: preemptible, nothing pending, which an image taken in an interrupt or a panic is not."""
        self._write_u32(self.kernel.preempt_count(self.cpu), 0)
        self._nothing_pending()

    def _nothing_pending(self) -> None:
        """No reschedule is asked for: neither by the task's flag nor by the bit folded into the preemption count."""
        count = self.kernel.preempt_count(self.cpu)
        self._write_u32(count, self.memory.u32(count) | _PREEMPT_FLAG)
        task = self.current
        flags = task + self.kernel.layout.offset("task_struct", "thread_info.flags")
        self._write_u64(flags, self.memory.u64(flags) & ~_TIF_NEED_RESCHED)

    def _schedule(self) -> None:
        """``__schedule()``: a task that only gives way gets the CPU back at once; one that waits is given up."""
        layout, regs = self.kernel.layout, self.machine.regs
        state = layout.offset("task_struct", "__state" if layout.has("task_struct", "__state") else "state")
        if regs.rdi & 0xFF != _PREEMPTED and self.memory.u32(self.current + state):
            raise self.machine.failure(WouldSleep, "the task would sleep")
        self._nothing_pending()
        self.machine.return_from(0)

    def become(self, task: int | str) -> TaskInfo:
        """Make a task the CPU's current one, as a context switch would: by pid, or by name (the first one of it).

        Its kernel stack, memory and page tables are taken. Later calls start from there. NoTask.
        """
        kernel, layout, memory = self.kernel, self.kernel.layout, self.memory
        self.reset()
        found = next((one for one in kernel.tasks() if task in (one.pid, one.name)), None)
        if found is None:
            raise NoTask(f"the image has no task {task!r}")
        stack = memory.u64(found.address + layout.offset("task_struct", "stack"))
        if not stack:
            raise NoTask(f"task {task!r} has no stack any more")
        size = self._stack_size()
        self._write_u64(kernel.current(self.cpu), found.address)
        self._write_u64(kernel.top_of_stack(self.cpu), stack + size)
        mm = memory.u64(found.address + layout.offset("task_struct", "mm"))
        if mm:
            directory = memory.u64(mm + layout.offset("mm_struct", "pgd"))
            root = memory.physical(directory)
            # A kernel thread runs on the last process's tables, lazily: text_poke would go back to init_mm.
            loaded = kernel.per_cpu(self.cpu, "cpu_tlbstate") + layout.offset("tlb_state", "loaded_mm")
            lazy = kernel.per_cpu(self.cpu, "cpu_tlbstate_shared") + layout.offset("tlb_state_shared", "is_lazy")
            self._write_u64(loaded & ADDRESS_MASK, mm)
            memory.write(lazy & ADDRESS_MASK, b"\0")
            self.machine.use_tables(root)
        self.top = stack + size - _USER_REGISTERS
        self._calm()
        self._leave_idle()
        self.keep()
        return found

    def _leave_idle(self) -> None:
        """What the idle loop does before it switches to a task: let RCU watch the CPU again, for probes rely on it."""
        symbols = self.kernel.symbols
        watching = symbols.get("rcu_is_watching")
        leave = next((symbols[name] for name in _IDLE_EXITS if name in symbols), None)
        stack = self.top - _STACK_GAP
        if watching and leave and not self.machine.call(watching, (), stack, count=False).rax & 0xFF:
            self.machine.call(leave, (), stack, count=False)

    def _stack_size(self) -> int:
        """THREAD_SIZE: the distance from the running task's stack to its top, as the kernel keeps it."""
        layout = self.kernel.layout
        init = self.kernel.symbols["init_task"]
        start = self.memory.u64(init + layout.offset("task_struct", "stack"))
        end = self.kernel.symbols.get("__end_init_stack") or self.kernel.symbols.get("__end_init_task")
        size = end - start if end else 4 * PAGE_SIZE
        return size if size in (2 * PAGE_SIZE, 4 * PAGE_SIZE, 8 * PAGE_SIZE, 16 * PAGE_SIZE) else 4 * PAGE_SIZE

    # States ---------------------------------------------------------------------------------------------------------

    def checkpoint(self) -> Checkpoint:
        """The present state, to go back to with ``restore``."""
        return Checkpoint(self.memory.memory.changed_pages(), self.memory.root, self.top)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Bring memory and CPU to a state; calls are possible again after one that did not return."""
        self.memory.memory.restore(checkpoint.pages)
        self.memory.root, self.top = checkpoint.root, checkpoint.top
        self.machine.memory_changed()
        self.machine.reset_cpu()
        self.machine.unusable = None

    def keep(self) -> None:
        """Let later calls start from the present state."""
        self._kept = self.checkpoint()

    def reset(self) -> None:
        """Back to the state in which the image was opened."""
        self._kept = self._opened
        self.restore(self._opened)

    # Calls ----------------------------------------------------------------------------------------------------------

    def call(
        self,
        function: str | int,
        *arguments: Argument,
        fresh: bool = True,
        warm: bool = True,
        count: bool = True,
        limit: int | None = 10_000_000,
        seconds: float = 60.0,
    ) -> Run:
        """Call a function of the kernel on the current task.

        ``warm``: the call is made twice and the second one counts, as the first takes other paths (static keys,
        per-task storage). ``fresh``: begin from the kept state. Other arguments and errors as ``KernelMachine.call``
        has them; NoSymbol, BadArgument.
        """  # fmt: skip
        address = function if isinstance(function, int) else self.kernel.code.address(function)
        if address is None:
            raise NoSymbol(str(function))
        if fresh:
            self.restore(self._kept)
        self.log.mark()
        if warm:
            values, stack = self._place(arguments)
            self.machine.call(address, values, stack, count=count, limit=limit, seconds=seconds)
        values, stack = self._place(arguments)
        run = self.machine.call(address, values, stack, count=count, limit=limit, seconds=seconds)
        run.messages += [KernelMessage(record.level, record.text) for record in self.log.new_records()]
        return run

    def value(self, function: str, run: Run) -> int:
        """What a call returned, unsigned, as wide as the function's result is (all of rax where BTF knows none)."""
        size = self.kernel.layout.return_bytes(function) or 8
        return run.rax & (1 << 8 * size) - 1

    @property
    def call_stack(self) -> int:
        """Guest address below which a call without arguments may use the task's stack."""
        return self.top - _STACK_GAP

    def _place(self, arguments: tuple[Argument, ...]) -> tuple[tuple[int, ...], int]:
        """Values of arguments, and the stack pointer below which the call may use the stack."""
        at = self.top - _SCRATCH
        stack = self.top - _STACK_GAP
        values = []
        for argument in arguments:
            if isinstance(argument, int):
                values.append(argument & ADDRESS_MASK)
            elif argument == "current":
                values.append(self.current)
            else:
                data = _bytes_of(argument)
                end = at + len(data) + 7 & ~7
                if end > self.top - _STACK_GAP:
                    room = _SCRATCH - _STACK_GAP
                    raise BadArgument(f"the arguments' bytes do not fit on the stack, which has room for {room}")
                self.memory.write(at, data)
                values.append(at)
                at, stack = end, self.top - _SCRATCH - 16
        return tuple(values), stack

    def system_calls(self) -> DumpCalls:
        """bpf(2) and perf_event_open(2) on the current task, from the kept state.

        The memory that the task is given for arguments is kept; what the calls do is not before ``keep``.
        Raises NoUserMemory where the task is no process: ``become`` one. LockHeld where the image was taken inside the
        scheduler: whatever wakes a task would wait for ever.
        """
        self.restore(self._kept)
        if self.holds_runqueue:
            raise LockHeld(f"the image was taken while CPU {self.cpu} held its runqueue's lock: it stays held")
        bottom = self.memory.u64(self.current + self.kernel.layout.offset("task_struct", "stack"))
        kernel = self.kernel
        calls = DumpCalls(self.machine, kernel.symbols, kernel.layout, top=self.top - _STACK_GAP, bottom=bottom)
        self.keep()
        return calls

    @property
    def holds_runqueue(self) -> bool:
        """Whether the CPU's runqueue is locked (``struct rq``, kernel/sched/sched.h)."""
        layout = self.kernel.layout
        if "runqueues" not in self.kernel.symbols or not layout.has("rq", "__lock"):
            return False
        return self.memory.u32(self.kernel.per_cpu(self.cpu, "runqueues") + layout.offset("rq", "__lock")) != 0

    def find_code(self) -> None:
        """Look again for code that the kernel generated, so that runs name it."""
        self.kernel.refresh_code()
        self.machine.names = self.kernel.code

    # Attachments ----------------------------------------------------------------------------------------------------

    def attachments(self) -> list[Attachment]:
        """What is attached where, as the machine's memory is now; what can't be read is added to ``gaps``."""
        reader = Attachments(self.memory, self.kernel.symbols, self.kernel.layout, self.kernel.code)
        found = reader.all()
        self.gaps += [gap for gap in reader.gaps if gap not in self.gaps]
        return found

    def _write_u64(self, address: int, value: int) -> None:
        self.memory.write(address, struct.pack("<Q", value & ADDRESS_MASK))

    def _write_u32(self, address: int, value: int) -> None:
        self.memory.write(address, struct.pack("<I", value))

    def close(self) -> None:
        """Give the engine and the file back."""
        self.machine.close()
        self.memory.memory.close()

    def __enter__(self) -> "MemoryImage":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _bytes_of(argument: str | bytes) -> bytes:
    if isinstance(argument, bytes):
        return argument
    zero = _ZERO.fullmatch(argument)
    return bytes(int(zero[1])) if zero else argument.encode() + b"\0"


__all__ = ["Argument", "BadArgument", "Checkpoint", "LockHeld", "MemoryImage", "MissingPage", "NoTask"]
