"""The machine: shared memory, vCPUs, host calls, tasks, snapshots, and names for its addresses."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from asm.image import Image
from emu.counting import InstructionCounter, Method, counter_for
from emu.counting.counts import InstructionCounts, aggregate
from emu.errors import MachineError
from emu.machine.address_map import ADDRESS_MASK, PAGE_SHIFT, PAGE_SIZE, AddressMap
from emu.machine.address_space import AddressSpace, SpaceRecord
from emu.machine.hostcall import HostCall, HostCalls, HostFunction
from emu.machine.image_map import ImagesRecord, ImageText
from emu.machine.paging import Prot
from emu.machine.snapshot import History, Snapshot
from emu.machine.task import Task, TaskRecord, TaskState
from emu.machine.text_view import ViewFrames
from emu.machine.vcpu import Vcpu, VcpuRecord

__all__ = ["Machine", "Prot", "Snapshot"]

STACK_SIZE = 16 << 10
"""Bytes of a task's stack (THREAD_SIZE)."""


@dataclass(frozen=True, slots=True)
class _State:
    space: SpaceRecord
    images: ImagesRecord
    vcpus: list[VcpuRecord]
    tasks: list[tuple[Task, TaskRecord]]
    stack_slots: tuple[int, ...]
    next_stack: int


class Machine(AddressSpace):
    """An x86_64 machine with ``ram_bytes`` of RAM; only its own stubs and stacks are mapped at first.

    Addresses are guest virtual ones unless said otherwise. ``counting`` is a method of ``emu.counting`` ("auto",
    "native", "portable", "each"; CountingError for any other), or "off".
    """

    def __init__(
        self,
        layout: AddressMap = AddressMap(),  # noqa: B008  # frozen
        *,
        ram_bytes: int = 64 << 20,
        vcpus: int = 1,
        counting: str = "auto",
    ) -> None:
        if vcpus < 1 or ram_bytes < 1 << 20:
            raise MachineError(f"{vcpus} vCPUs, {ram_bytes} bytes of RAM: at least one and 1 MiB are needed")
        super().__init__(ram_bytes)
        self.layout = layout
        self.view_frames = ViewFrames(self.ram)
        self.on_int3: list[Callable[[Vcpu], bool]] = []
        """Called in turn after an int3 (rip is after it) until one returns True: it has set rip."""
        self.on_fault: list[Callable[[Vcpu, int], bool]] = []
        """Called in turn, with the instruction's address, after a page fault or a general protection fault until one
        returns True: it has set rip, and the registers that the instruction would have set (``fixup_exception``)."""
        self.symbolize: Callable[[int], str | None] | None = None
        """Name of the function at an address."""
        self.current_offset: int | None = None
        """Offset of ``current`` in the per-CPU area; None without such a word."""
        self.max_ticks = 600
        """Limit on a run's host time in tenths of a second, then GuestTimeout: a safety net, not part of any result."""
        self._history = History(self.ram)
        self._stack_slots: list[int] = []
        self._next_stack = layout.stacks
        self._closed = False
        self.host_calls = HostCalls(layout.host_calls)
        self.map(self.host_calls.address, self.host_calls.size, Prot.READ | Prot.EXEC, name="host calls")
        self.load(self.host_calls.address, self.host_calls.code)
        self.tasks: list[Task] = []
        """All tasks, the vCPUs' own first."""
        for index in range(vcpus):
            vcpu = Vcpu(self, index)
            self.vcpus.append(vcpu)
            vcpu.idle.stack_top = self._new_stack(vcpu.idle.name)
            self.tasks.append(vcpu.idle)
            if counting != "off":
                vcpu.counter = counter_for(vcpu.uc, vcpu.read_code, cast(Method, counting))

    # Names of addresses ---------------------------------------------------------------------------------------------

    def add_image(self, image: Image) -> None:
        """Register an image's listing for faults and counts. Its bytes are not loaded."""
        self.images.add(image)

    def add_text(self, text: ImageText) -> None:
        """Register the listings of a whole range of text, as ``add_image`` does for one image."""
        self.images.add_text(text)

    def remove_text(self, text: ImageText) -> None:
        """Remove the listings of a range."""
        for vcpu in self.vcpus:
            vcpu.collect_counts()
        self.images.remove_text(text)

    def remove_image(self, address: int) -> None:
        """Remove the image that begins at an address."""
        for vcpu in self.vcpus:
            vcpu.collect_counts()
        self.images.remove(address)

    def function_at(self, address: int) -> str | None:
        """Name of the function or host call at an address."""
        found = self.host_calls.name(address)
        if found is None and self.symbolize is not None:
            found = self.symbolize(address)
        return found

    def describe(self, address: int) -> str | None:
        """Description of an address: symbol+offset, and the listing's line."""
        place = self.function_at(address)
        image = self.images.at(address)
        if image is None:
            return place
        place = f"{place or image.name or 'image'}+{address - image.address:#x}"
        line = image.line_at(address)
        if line is None:
            return place
        return f"{place}: {line.text}" + (f"  ; {line.comment}" if line.comment else "")

    def counts_of(self, counter: InstructionCounter) -> InstructionCounts:
        """A counter's counts, by phase and function."""
        by_address = counter.counts()
        for address in [address for address in by_address if self.host_calls.is_stub(address)]:
            del by_address[address]
        return aggregate(by_address, counter.unbalanced_returns, self.images.phase, self.function_at)

    def host_call(self, name: str, fn: HostFunction) -> int:
        """Guest address of a stub for guest code to call: ``fn`` runs with the vCPU, its result goes to rax.

        None leaves rax unchanged. What ``fn`` raises ends the run and is raised by ``Vcpu.call``. MachineError if all
        stubs are in use.
        """
        return self.host_calls.add(name, fn)

    def remove_host_call(self, address: int) -> HostCall:
        """Remove a host call. MachineError if there is none at the address."""
        return self.host_calls.remove(address)

    # Tasks ----------------------------------------------------------------------------------------------------------

    def task(self, name: str, function: int, args: tuple[int, ...] = (), *, struct: int = 0) -> Task:
        """A new kernel thread with its own stack, which will call a function; ``Vcpu.run`` runs it.

        ``struct`` is the guest address of its task_struct. OutOfMemory if there is no room for the stack.
        """
        task = Task(name, self._new_stack(name), address=struct)
        task.entry = (function, tuple(args))
        self.tasks.append(task)
        return task

    def remove_task(self, task: Task) -> None:
        """Remove a task that no vCPU runs and free its stack. MachineError if its state does not allow that."""
        if task.state is TaskState.RUNNING or task not in self.tasks:
            raise MachineError(f"task {task.name} is {task.state}")
        self.tasks.remove(task)
        self.unmap(task.stack_top - STACK_SIZE, STACK_SIZE)
        self._stack_slots.append(task.stack_top - STACK_SIZE)

    def _new_stack(self, name: str) -> int:
        """The top of a new stack, above an unmapped guard page."""
        bottom = self._stack_slots[-1] if self._stack_slots else self._next_stack + PAGE_SIZE
        self.map(bottom, STACK_SIZE, Prot.READ | Prot.WRITE, name=f"stack of {name}")
        if self._stack_slots:
            self._stack_slots.pop()
        else:
            self._next_stack = bottom + STACK_SIZE
        return bottom + STACK_SIZE

    # Snapshots ------------------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """The machine's current state. Costs what was written since the last snapshot or restore: ``pages_copied``.

        Contains guest memory, mappings, registers, tasks, pending text and image names, but not host calls.
        MachineError while a vCPU runs.
        """
        dirty = self._harvest()
        state = _State(
            self.capture(),
            self.images.capture(),
            [vcpu.capture() for vcpu in self.vcpus],
            [(task, task.capture()) for task in self.tasks],
            tuple(self._stack_slots),
            self._next_stack,
        )
        return self._history.take(dirty, state)

    def restore(self, snapshot: Snapshot) -> None:
        """Return to a state of this machine, older or newer. Costs the pages that differ: ``pages_copied``.

        MachineError for another machine's snapshot, and while a vCPU runs.
        """
        self._history.check(snapshot)
        state = snapshot.state
        assert isinstance(state, _State)
        dirty = self._harvest()
        for vcpu in self.vcpus:
            vcpu.collect_counts()
        if self.text_users is state.space.text_users:
            for frame in self._history.differing(snapshot, dirty) & self.text_users.keys():
                # The engine's translations are of the current text: unchanged parts of the page keep theirs.
                first, end = _difference(self.ram.page(frame), snapshot.page(frame))
                for page in self.text_users[frame] if first < end else ():
                    self.before_text_change((page << PAGE_SHIFT) + first, (page << PAGE_SHIFT) + end)
        else:
            self.before_text_change(0, ADDRESS_MASK)
        self._history.restore(snapshot, dirty)
        self.restore_space(state.space)
        self.images.restore(state.images)
        self._stack_slots, self._next_stack = list(state.stack_slots), state.next_stack
        for vcpu, record in zip(self.vcpus, state.vcpus, strict=True):
            vcpu.restore(record)
        self.tasks = [task for task, _ in state.tasks]
        for task, captured in state.tasks:
            task.restore(captured)

    @property
    def pages_copied(self) -> int:
        """Pages that the last snapshot or restore copied."""
        return self._history.pages_copied

    def _harvest(self) -> set[int]:
        """Frames written since the last snapshot or restore, by host and guest; tracking restarts."""
        if any(vcpu.is_running for vcpu in self.vcpus):
            raise MachineError("a vCPU is running")
        for vcpu in self.vcpus:
            vcpu.view.drop()
            vcpu.mappings_changed()
        dirty = self.tables.harvest() | self.ram.dirty
        self.ram.dirty = set()
        return dirty

    def close(self) -> None:
        """Free all resources. Only ``close`` may be called afterwards."""
        if not self._closed:
            self._closed = True
            for vcpu in self.vcpus:
                vcpu.close()
            self.vcpus.clear()

    def __enter__(self) -> "Machine":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


_PIECE = 64


def _difference(one: bytes, other: bytes) -> tuple[int, int]:
    """Range in which two pages differ, rounded to 64 bytes: offsets of its start and end, (0, 0) for equal pages."""
    if one == other:
        return 0, 0
    pieces = range(0, PAGE_SIZE, _PIECE)
    differs = [at for at in pieces if one[at : at + _PIECE] != other[at : at + _PIECE]]
    return differs[0], differs[-1] + _PIECE
