"""A machine: RAM, page tables, vCPUs, host calls and everything that is known about its memory."""

import struct
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass

from emu.counting import InstructionCounter, counter_for
from emu.counts import Counts, aggregate
from emu.errors import MachineError, NotMapped, OutOfMemory, TextWriteError
from emu.hostcall import HostCall, HostCalls, HostFunction
from emu.images import Images, ListedImage
from emu.layout import ADDRESS_MASK, PAGE_MASK, PAGE_SHIFT, PAGE_SIZE, AddressMap, is_canonical
from emu.paging import NX, PageTables, Prot, frame_of, leaf, page_range
from emu.ram import Ram
from emu.snapshot import History, Snapshot
from emu.task import Task, TaskRecord, TaskState
from emu.text import TextWrite, ViewFrames
from emu.vcpu import Vcpu

__all__ = ["Machine", "Prot", "Snapshot"]

STACK_SIZE = 16 << 10
"""Bytes of a task's stack (THREAD_SIZE)."""
INT3 = b"\xcc"

_U16, _U32, _U64 = struct.Struct("<H"), struct.Struct("<I"), struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class Region:
    """What ``Machine.map`` was told about a range."""

    start: int
    end: int
    name: str


@dataclass(frozen=True, slots=True)
class _VcpuRecord:
    registers: list[int]
    gs_base: int
    task: Task
    pending: list[TextWrite]
    seen: set[int]


@dataclass(frozen=True, slots=True)
class _State:
    allocator: tuple[int, tuple[int, ...], dict[int, int]]
    regions: tuple[Region, ...]
    text_users: dict[int, list[int]]
    text_aliases: dict[int, int]
    images: tuple[object, ...]
    vcpus: list[_VcpuRecord]
    tasks: list[tuple[Task, TaskRecord]]


class Machine:
    """An x86_64 machine with ``ram_bytes`` of RAM, mapped nowhere until ``map`` is called.

    Addresses are guest virtual ones unless said otherwise. ``counting`` is a method of ``emu.counting``, or "off".
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
        self.layout = layout
        self.ram = Ram(ram_bytes)
        self.tables = PageTables(self.ram)
        self.view_frames = ViewFrames(self.ram)
        self.images = Images()
        self.on_int3: list[Callable[[Vcpu], bool]] = []
        """Asked in turn after an int3 (rip is behind it) until one gives True: it has set rip."""
        self.symbolize: Callable[[int], str | None] | None = None
        """Name of the function at an address."""
        self.current_offset: int | None = None
        """Offset of ``current`` in the per-CPU area; None: no such word is kept."""
        self.max_ticks = 600
        """Tenths of a second of host time after which a run is a GuestTimeout: a net, not a result."""
        self.text_aliases: dict[int, int] = {}
        """Page numbers through which the guest may write to text, and the frame."""
        self._text_users: dict[int, list[int]] = {}
        self._regions: list[Region] = []
        self._history = History(self.ram)
        self._serial = 0
        self._stack_slots: list[int] = []
        self._next_stack = layout.stacks
        self._closed = False
        self.vcpus: list[Vcpu] = []
        self.host_calls = HostCalls(layout.host_calls)
        self.map(self.host_calls.address, self.host_calls.size, Prot.READ | Prot.EXEC, name="host calls")
        self._store(self.host_calls.address, self.host_calls.code)
        for index in range(vcpus):
            self.vcpus.append(Vcpu(self, index))
        self.tasks: list[Task] = []
        for vcpu in self.vcpus:
            vcpu.idle.stack_top = self._new_stack(vcpu.idle.name)
            self.tasks.append(vcpu.idle)
        self._set_counting(counting)

    # Mappings -------------------------------------------------------------------------------------------------------

    def map(self, address: int, size: int, prot: Prot, name: str = "") -> None:
        """Map zeroed memory. MachineError where something is mapped already; OutOfMemory. Nothing is changed then."""
        page, count = self._free_range(address, size)
        wanted = count + self.tables.tables_needed(page, count)
        if wanted > self.free_frames:
            raise OutOfMemory(wanted, self.free_frames)
        self._before_mapping_change()
        frames = self.ram.allocator.take(count)
        self._install(page, frames, prot, name)

    def alias(self, address: int, size: int, prot: Prot, of: int, name: str = "") -> None:
        """Map the memory that is mapped at ``of`` a second time."""
        page, count = self._free_range(address, size)
        page_range(of, size)
        frames = [frame_of(self._entry(number << PAGE_SHIFT)) for number in range(of >> PAGE_SHIFT, (of >> 12) + count)]
        needed = self.tables.tables_needed(page, count)
        if needed > self.free_frames:
            raise OutOfMemory(needed, self.free_frames)
        self._before_mapping_change()
        for frame in frames:
            self.ram.allocator.share(frame)
        self._install(page, frames, prot, name or "alias")

    def unmap(self, address: int, size: int) -> None:
        """Take mappings out; memory that is mapped nowhere else is freed. NotMapped, and nothing changed, for a hole."""
        page, count = page_range(address, size)
        for number in range(page, page + count):
            self._entry(number << PAGE_SHIFT)
        self._before_mapping_change()
        self._before_text_change(address, address + size)
        for number in range(page, page + count):
            frame = frame_of(self.tables.unmap(number))
            self._drop_text_use(frame, number)
            self.ram.allocator.give_back(frame)
        for vcpu in self.vcpus:
            vcpu.view.discard(address, address + size)
            vcpu.mappings_changed()
        self._cut_regions(address, address + size)

    def protect(self, address: int, size: int, prot: Prot) -> None:
        """Change what guest code may do with mapped memory."""
        page, count = page_range(address, size)
        entries = [self._entry(number << PAGE_SHIFT) for number in range(page, page + count)]
        self._before_mapping_change()
        self._before_text_change(address, address + size)
        for number, entry in enumerate(entries, start=page):
            frame = frame_of(entry)
            self._drop_text_use(frame, number)
            self.tables.set_entry(number, leaf(frame, prot))
            self._note_text_use(frame, number, prot)
        for vcpu in self.vcpus:
            vcpu.mappings_changed()

    def is_mapped(self, address: int) -> bool:
        """Whether something is mapped at an address."""
        return self.page_entry(address) != 0

    def page_entry(self, address: int) -> int:
        """The page-table entry for an address, 0 where nothing is mapped."""
        return self.tables.entry(address >> PAGE_SHIFT) if is_canonical(address) else 0

    @property
    def free_frames(self) -> int:
        """Frames of RAM that nothing uses."""
        return self.ram.allocator.free_frames

    def regions_at(self, address: int) -> str | None:
        """What ``map`` was told about an address, for messages."""
        position = bisect_right(self._regions, address, key=lambda region: region.start)
        region = self._regions[position - 1] if position else None
        return region.name or None if region is not None and address < region.end else None

    def _free_range(self, address: int, size: int) -> tuple[int, int]:
        page, count = page_range(address, size)
        if not is_canonical(address) or not is_canonical(address + size - 1):
            raise MachineError(f"{address:#x} + {size:#x} bytes is no range of canonical addresses")
        taken = self.tables.mapped_in(page, count)
        if taken is not None:
            raise MachineError(f"{taken << PAGE_SHIFT:#x} is mapped already")
        return page, count

    def _install(self, page: int, frames: list[int], prot: Prot, name: str) -> None:
        self.tables.map(page, [leaf(frame, prot) for frame in frames])
        executable = Prot.EXEC in prot
        for number, frame in enumerate(frames, start=page):
            if executable or frame in self._text_users:
                self._note_text_use(frame, number, prot)
        start, end = page << PAGE_SHIFT, page + len(frames) << PAGE_SHIFT
        position = bisect_right(self._regions, start, key=lambda region: region.start)
        self._regions.insert(position, Region(start, end, name))
        self.images.set_used(start, end)
        if executable:
            for vcpu in self.vcpus:
                vcpu.text_changed(start, end)

    def _note_text_use(self, frame: int, page: int, prot: Prot) -> None:
        if Prot.EXEC in prot:
            users = self._text_users.setdefault(frame, [])
            if not users:
                self._find_writable_aliases(frame)
            users.append(page)
        if Prot.WRITE in prot and frame in self._text_users:
            self.text_aliases[page] = frame

    def _find_writable_aliases(self, frame: int) -> None:
        """A frame becomes text: mappings of it that the guest may write through are to be watched."""
        for region in self._regions:
            for page in range(region.start >> PAGE_SHIFT, region.end >> PAGE_SHIFT):
                entry = self.tables.entry(page)
                if frame_of(entry) == frame and entry & 2:
                    self.text_aliases[page] = frame

    def _drop_text_use(self, frame: int, page: int) -> None:
        self.text_aliases.pop(page, None)
        users = self._text_users.get(frame)
        if users and page in users:
            users.remove(page)
            if not users:
                del self._text_users[frame]
                for alias in [alias for alias, target in self.text_aliases.items() if target == frame]:
                    del self.text_aliases[alias]

    def _cut_regions(self, start: int, end: int) -> None:
        kept = []
        for region in self._regions:
            if region.start < start:
                kept.append(Region(region.start, min(region.end, start), region.name))
            if region.end > end:
                kept.append(Region(max(region.start, end), region.end, region.name))
        self._regions = kept

    def _before_mapping_change(self) -> None:
        for vcpu in self.vcpus:
            vcpu.view.drop()

    # Memory ---------------------------------------------------------------------------------------------------------

    def read(self, address: int, size: int) -> bytes:
        """Bytes of guest memory, as memory holds them (a vCPU may see other text). NotMapped."""
        offset = address & PAGE_MASK
        if offset + size <= PAGE_SIZE:
            start = (frame_of(self._entry(address)) << PAGE_SHIFT) + offset
            return self.ram.bytes[start : start + size]
        return b"".join(self.ram.bytes[start : start + length] for start, length in self._pieces(address, size))

    def write(self, address: int, data: bytes) -> None:
        """Write to memory that is not text. NotMapped, TextWriteError; nothing is written then."""
        offset = address & PAGE_MASK
        size = len(data)
        if offset + size <= PAGE_SIZE:
            frame = frame_of(self._entry(address))
            if frame in self._text_users:
                raise TextWriteError(address)
            start = (frame << PAGE_SHIFT) + offset
            self.ram.bytes[start : start + size] = data
            self.ram.dirty.add(frame)
            return
        for number in range(address >> PAGE_SHIFT, (address + size - 1 >> PAGE_SHIFT) + 1):
            if frame_of(self._entry(number << PAGE_SHIFT)) in self._text_users:
                raise TextWriteError(max(address, number << PAGE_SHIFT))
        self._store(address, data)

    def read_u8(self, address: int) -> int:
        """One byte."""
        return self.read(address, 1)[0]

    def read_u16(self, address: int) -> int:
        """Two bytes, as a number."""
        return int.from_bytes(self.read(address, 2), "little")

    def read_u32(self, address: int) -> int:
        """Four bytes, as a number."""
        return int.from_bytes(self.read(address, 4), "little")

    def read_u64(self, address: int) -> int:
        """Eight bytes, as a number."""
        return int.from_bytes(self.read(address, 8), "little")

    def write_u8(self, address: int, value: int) -> None:
        """Write a number modulo 2^8."""
        self.write(address, bytes((value & 0xFF,)))

    def write_u16(self, address: int, value: int) -> None:
        """Write a number modulo 2^16."""
        self.write(address, _U16.pack(value & 0xFFFF))

    def write_u32(self, address: int, value: int) -> None:
        """Write a number modulo 2^32."""
        self.write(address, _U32.pack(value & 0xFFFFFFFF))

    def write_u64(self, address: int, value: int) -> None:
        """Write a number modulo 2^64."""
        self.write(address, _U64.pack(value & ADDRESS_MASK))

    def _entry(self, address: int) -> int:
        entry = self.page_entry(address)
        if not entry:
            raise NotMapped(address)
        return entry

    def _pieces(self, address: int, size: int) -> list[tuple[int, int]]:
        """(offset in RAM, length) of the parts of a range, page by page."""
        pieces = []
        end = address + size
        while address < end:
            offset = address & PAGE_MASK
            length = min(PAGE_SIZE - offset, end - address)
            pieces.append(((frame_of(self._entry(address)) << PAGE_SHIFT) + offset, length))
            address += length
        return pieces

    def _store(self, address: int, data: bytes) -> None:
        pieces = self._pieces(address, len(data))
        done = 0
        for start, length in pieces:
            self.ram.bytes[start : start + length] = data[done : done + length]
            self.ram.dirty.add(start >> PAGE_SHIFT)
            done += length

    # Text -----------------------------------------------------------------------------------------------------------

    def load(self, address: int, data: bytes) -> None:
        """Fill memory with code that nobody has executed yet: every vCPU sees it at once."""
        self._pieces(address, len(data))
        end = address + len(data)
        self._before_text_change(address, end)
        for vcpu in self.vcpus:
            vcpu.view.discard(address, end)
            if vcpu.view.private_pages:
                vcpu.view.drop()
        self._store(address, data)
        self.images.set_used(address, end)

    def write_text(self, address: int, data: bytes) -> None:
        """Patch text, as through the poking alias; each vCPU adopts it when it serialises.

        MachineError where the memory is not executable.
        """
        old = self.read(address, len(data))
        for number in range(address >> PAGE_SHIFT, (address + len(data) - 1 >> PAGE_SHIFT) + 1):
            if self.tables.entry(number) & NX:
                raise MachineError(f"{address:#x} is not text")
        if not data or old == data:
            return
        self._serial += 1
        write = TextWrite(address, old, bytes(data), self._serial)
        self._store(address, data)
        for vcpu in self.vcpus:
            vcpu.view.add(write)

    def poison(self, address: int, size: int, name: str) -> None:
        """Fill freed executable memory with int3, and remember whose it was: executing it is a fault that names it."""
        self.load(address, INT3 * size)
        self.images.set_freed(address, address + size, name)

    def adopt_guest_text_writes(self) -> None:
        """After a run: text that the guest wrote through a writable alias is what every vCPU executes from now on."""
        for page, frame in self.text_aliases.items():
            if self.tables.is_dirty(page):
                self.tables.clear_dirty(page)
                self.ram.dirty.add(frame)
                for vcpu in self.vcpus:
                    vcpu.mappings_changed()
                    for user in self._text_users[frame]:
                        vcpu.text_changed(user << PAGE_SHIFT, user + 1 << PAGE_SHIFT)

    def _before_text_change(self, start: int, end: int) -> None:
        for vcpu in self.vcpus:
            if vcpu.counter is not None:
                vcpu.counter.invalidate(start, end)
            vcpu.text_changed(start, end)

    # What is known about memory -------------------------------------------------------------------------------------

    def add_image(self, image: ListedImage) -> None:
        """Make an image's listing known to faults and counts. Its bytes are not loaded."""
        self.images.add(image)

    def remove_image(self, address: int) -> None:
        """Forget the image that begins at an address."""
        for vcpu in self.vcpus:
            vcpu.collect_counts()
        self.images.remove(address)

    def function_at(self, address: int) -> str | None:
        """Name of the function, or host call, at an address."""
        found = self.host_calls.name(address)
        if found is None and self.symbolize is not None:
            found = self.symbolize(address)
        return found

    def describe(self, address: int) -> str | None:
        """What an address is, in words: its function and its listing line."""
        function, line = self.function_at(address), self.images.line(address)
        text = line.text if line is not None else None
        return ": ".join(part for part in (function, text) if part) or None

    def counts_of(self, counter: InstructionCounter) -> Counts:
        """A counter's counts, by phase and function."""
        by_address = counter.counts()
        for address in [address for address in by_address if self.host_calls.is_stub(address)]:
            del by_address[address]
        return aggregate(by_address, counter.unbalanced_returns, self.images.phase, self.function_at)

    def host_call(self, name: str, fn: HostFunction) -> int:
        """Guest address that guest code may call: ``fn`` then runs with the vCPU, its result goes to rax.

        None leaves rax alone. What ``fn`` raises ends the run and comes out of ``Vcpu.call``.
        """
        return self.host_calls.add(name, fn)

    def remove_host_call(self, address: int) -> HostCall:
        """Take a host call back."""
        return self.host_calls.remove(address)

    # Tasks ----------------------------------------------------------------------------------------------------------

    def task(self, name: str, function: int, args: tuple[int, ...] = (), *, struct: int = 0) -> Task:
        """A new kernel thread with a stack of its own, which will call a function; ``Vcpu.run`` runs it.

        ``struct`` is the guest address of its task_struct.
        """
        task = Task(name, self._new_stack(name), address=struct)
        task.entry = (function, tuple(args))
        self.tasks.append(task)
        return task

    def remove_task(self, task: Task) -> None:
        """Forget a task that no vCPU runs and free its stack."""
        if task.state is TaskState.RUNNING or task not in self.tasks:
            raise MachineError(f"task {task.name} is {task.state}")
        self.tasks.remove(task)
        self.unmap(task.stack_top - STACK_SIZE, STACK_SIZE)
        self._stack_slots.append(task.stack_top - STACK_SIZE)

    def _new_stack(self, name: str) -> int:
        """The top of a new stack, above an unmapped guard page."""
        if self._stack_slots:
            bottom = self._stack_slots[-1]
        else:
            bottom = self._next_stack + PAGE_SIZE
        self.map(bottom, STACK_SIZE, Prot.READ | Prot.WRITE, name=f"stack of {name}")
        if self._stack_slots:
            self._stack_slots.pop()
        else:
            self._next_stack = bottom + STACK_SIZE
        return bottom + STACK_SIZE

    # Snapshots ------------------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """The machine's present state. Costs what was written since the last snapshot or restore.

        Guest memory, mappings, registers, tasks, pending text and image names are in it; host calls are not. A vCPU in
        the middle of a run is refused.
        """
        dirty = self._harvest()
        vcpus = [
            _VcpuRecord(v.regs.save(), v.gs_base, v.task, list(v.view.pending), set(v.view.seen)) for v in self.vcpus
        ]
        state = _State(
            self.ram.allocator.state(),
            tuple(self._regions),
            {frame: list(users) for frame, users in self._text_users.items()},
            dict(self.text_aliases),
            self.images.state(),
            vcpus,
            [(task, task.capture()) for task in self.tasks],
        )
        return self._history.take(dirty, (state, tuple(self._stack_slots), self._next_stack))

    def restore(self, snapshot: Snapshot) -> None:
        """Back to a state of this machine, older or newer. Costs the pages that differ: ``pages_copied``."""
        self._history.check(snapshot)
        dirty = self._harvest()
        state, stack_slots, next_stack = snapshot.state  # type: ignore[misc]
        assert isinstance(state, _State)
        for vcpu in self.vcpus:
            vcpu.collect_counts()
        text = self._text_users
        if any(vcpu.counter is not None for vcpu in self.vcpus):
            for frame in self._history.differing(snapshot, dirty):
                for page in {*text.get(frame, ()), *state.text_users.get(frame, ())}:
                    self._invalidate_counters(page << PAGE_SHIFT, page + 1 << PAGE_SHIFT)
        changed = self._history.restore(snapshot, dirty)
        for frame in changed:
            for page in {*text.get(frame, ()), *state.text_users.get(frame, ())}:
                for vcpu in self.vcpus:
                    vcpu.text_changed(page << PAGE_SHIFT, page + 1 << PAGE_SHIFT)
        self.tables.forget()
        self.ram.allocator.restore(state.allocator)
        self._regions = list(state.regions)
        self._text_users = {frame: list(users) for frame, users in state.text_users.items()}
        self.text_aliases = dict(state.text_aliases)
        self.images.restore(state.images)
        self._stack_slots, self._next_stack = list(stack_slots), next_stack
        for vcpu, record in zip(self.vcpus, state.vcpus, strict=True):
            vcpu.restore(record.registers, record.gs_base, record.task, record.pending, record.seen)
        self.tasks = [task for task, _ in state.tasks]
        for task, captured in state.tasks:
            task.restore(captured)

    @property
    def pages_copied(self) -> int:
        """Pages that the last snapshot or restore copied."""
        return self._history.pages_copied

    def _harvest(self) -> set[int]:
        """Frames written since the last snapshot or restore, by host and guest; counting begins anew."""
        if any(vcpu.is_running for vcpu in self.vcpus):
            raise MachineError("a vCPU is running")
        for vcpu in self.vcpus:
            vcpu.view.drop()
            vcpu.mappings_changed()
        dirty = self.tables.harvest() | self.ram.dirty
        self.ram.dirty = set()
        return dirty

    def _invalidate_counters(self, start: int, end: int) -> None:
        for vcpu in self.vcpus:
            if vcpu.counter is not None:
                vcpu.counter.invalidate(start, end)

    # Counting and the end -------------------------------------------------------------------------------------------

    def _set_counting(self, method: str) -> None:
        if method == "off":
            return
        for vcpu in self.vcpus:
            vcpu.counter = counter_for(vcpu.uc, vcpu.read_code, method)  # type: ignore[arg-type]

    def close(self) -> None:
        """Give everything back. Nothing may be called afterwards but this."""
        if not self._closed:
            self._closed = True
            for vcpu in self.vcpus:
                vcpu.close()
            self.vcpus.clear()

    def __enter__(self) -> "Machine":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
