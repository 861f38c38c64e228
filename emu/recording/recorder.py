"""Recording a kernel's vCPUs while they run.

A recorder replaces a vCPU's counter, forwards to it, and receives every block: the counter's own rules tell which of
them were executed, and how much of the last.
"""

import ctypes
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Final

from unicorn.unicorn_const import UC_HOOK_BLOCK
from unicorn.x86_const import UC_X86_REG_RSP

from asm import AsmError, decode
from emu.counting import counter_for
from emu.counting.block import Block, BlockEnd, decode_block
from emu.counting.counts import OTHER
from emu.counting.engine_hook import EngineHook, address_of, stop_engine
from emu.errors import MachineError
from emu.events import Event
from emu.host import libunicorn
from emu.kernel.kernel import Kernel
from emu.machine.machine import Machine
from emu.machine.task import Task
from emu.machine.vcpu import Vcpu
from emu.recording.callstack import CallStack, Segment, Way
from emu.recording.model import CallNode, ExecutedInsn, Mark, Recording
from emu.recording.timeline import Track

_BLOCK_HOOK: Final = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_void_p)
_MANY_ENTERED: Final = 1 << 16
"""Number of blocks after which pending ones are processed within a run, to limit its memory."""
_ENDS: Final = {BlockEnd.CALL: Way.CALL, BlockEnd.RETURN: Way.RETURN}
_BELONGS: Final = attrgetter("function", "phase")


@contextmanager
def record(kernel: Kernel) -> Iterator[Recording]:
    """Record every vCPU of a kernel, and the kernel's events, while the block runs.

    MachineError while a vCPU runs. A run takes some microseconds more for each block of code (a straight piece between
    jumps). Counts are unchanged.
    """
    machine = kernel.machine
    if any(vcpu.is_running for vcpu in machine.vcpus):
        raise MachineError("a vCPU is running: recordings begin and end between runs")
    recording = Recording(len(machine.vcpus), executed=[0] * len(machine.vcpus))
    stacks = _Stacks(machine, recording.root)
    recorders: list[_VcpuRecorder] = []

    def mark(event: Event) -> None:
        running = next((one for one in reversed(recorders) if one.vcpu.is_running), None)
        cpu = None if running is None else running.vcpu.index
        own = recording.instructions if cpu is None else recording.executed[cpu]
        recording.marks.append(Mark(recording.instructions, own, cpu, event))

    with ExitStack() as undo:
        undo.callback(kernel.events.subscribe(mark))
        undo.callback(stacks.close, recording)
        for vcpu in machine.vcpus:
            recorders.append(_VcpuRecorder(vcpu, recording, stacks))
            undo.callback(recorders[-1].put_back)
        yield recording


class _Stacks:
    """The call stacks of a machine's tasks."""

    def __init__(self, machine: Machine, root: CallNode) -> None:
        self._idle = {vcpu.idle for vcpu in machine.vcpus}
        self._root = root
        self._stacks: dict[Task, CallStack] = {}

    def of(self, task: Task, track: Track) -> CallStack:
        """A task's call stack, drawn on this track from now on."""
        stack = self._stacks.get(task)
        if stack is None:
            stack = self._stacks[task] = CallStack(self._root, None if task in self._idle else task.name)
        if track.stack is not stack:
            if track.stack is not None:
                track.stack.show(None)
            stack.show(track)
        return stack

    def close(self, recording: Recording) -> None:
        """End all frames, and add up."""
        for stack in self._stacks.values():
            if stack.track is not None:
                stack.close()
            for (node, segment), times in stack.segments.items():
                for address in segment.addresses:
                    node.counts[address] = node.counts.get(address, 0) + times
        for node in recording.root.walk():
            node.counts = {address: node.counts[address] for address in sorted(node.counts)}


@dataclass(eq=False, slots=True)
class _Known:
    """A block with its decoded instructions."""

    block: Block
    segments: tuple[Segment, ...]


class _VcpuRecorder:
    """Receiver of one vCPU's blocks, in place of its counter."""

    def __init__(self, vcpu: Vcpu, recording: Recording, stacks: _Stacks) -> None:
        self.vcpu = vcpu
        self._recording, self._stacks = recording, stacks
        self._track = Track(recording, vcpu.index)
        self._own_counter = vcpu.counter is None
        vcpu.collect_counts()
        self._counter = vcpu.counter or counter_for(vcpu.uc, vcpu.read_code)
        self._known: dict[tuple[int, int], _Known] = {}
        self._entered: list[tuple[int, int, int]] = []
        """Address, size and stack pointer of blocks that were entered and not yet processed."""
        self._held: tuple[_Known, int] | None = None
        """The last one, which may not have been executed to its end, and its stack pointer."""
        self._tip: Block | None = None
        """The same, or the repeated instruction at its end."""
        self._ways: dict[CallStack, Way] = {}
        self._left: dict[CallStack, tuple[int, int]] = {}
        """State of each task at the end of its last run: rip and the stack pointer."""
        self._starts: set[int] = set()
        """Stack pointers of host entries to functions that have not run yet."""
        self._stack: CallStack | None = None
        self._unbalanced = 0
        self._stop = False
        self._error: BaseException | None = None
        self._rsp = ctypes.c_uint64()
        self._callback = _BLOCK_HOOK(self._block_entered)
        self._hook = EngineHook(vcpu.uc, UC_HOOK_BLOCK, address_of(self._callback), 0)
        vcpu.counter = self

    def put_back(self) -> None:
        """Restore the vCPU's counter. No effect if the vCPU was closed."""
        if self.vcpu.counter is not self:
            return
        self.vcpu.settle_counter()
        self.vcpu.collect_counts()
        self._hook.remove()
        self.vcpu.counter = None if self._own_counter else self._counter
        if self._own_counter:
            self._counter.remove()

    # Interface of a counter ----------------------------------------------------------------------------------------

    @property
    def method(self) -> str:
        """Counting method."""
        return self._counter.method

    @property
    def instructions(self) -> int:
        """Instructions executed since the reset."""
        return self._counter.instructions

    @property
    def unbalanced_returns(self) -> int:
        """Returns since the reset that didn't go where the return stack said."""
        return self._counter.unbalanced_returns

    def begin(self) -> None:
        """Called before each run."""
        self._counter.begin()
        self._unbalanced = self._counter.unbalanced_returns
        self._stack = self._stacks.of(self.vcpu.task, self._track)

    def end(self, rip: int, faulted: bool) -> None:
        """Called after each run: processes its blocks."""
        try:
            self._counter.end(rip, faulted)
        finally:
            if self._stack is not None:
                self._recording.unbalanced_returns += self._counter.unbalanced_returns - self._unbalanced
                self._work_off()
                self._finish(rip)
                self._left[self._stack] = (rip, self.vcpu.regs.rsp)
                self._stack = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def push_return(self, return_address: int) -> None:
        """Record an entry to a function by the host."""
        self._counter.push_return(return_address)
        self._starts.add(self.vcpu.regs.rsp)

    def request_stop(self, wanted: bool = True) -> None:
        """End the run when the next block is entered, or cancel that. May be called from any thread."""
        self._stop = wanted

    def invalidate(self, start: int, end: int) -> None:
        """Note that the text of a range changed."""
        self._counter.invalidate(start, end)
        for key in [key for key in self._known if key[0] < end and start < key[0] + key[1]]:
            del self._known[key]

    def counts(self) -> dict[int, int]:
        """Executions of each instruction since the reset."""
        return self._counter.counts()

    def reset(self) -> None:
        """Zero the counts; the recording continues."""
        self._counter.reset()

    def remove(self) -> None:
        """Called when the vCPU is closed."""
        self._hook.remove()
        self._counter.remove()

    # Blocks ---------------------------------------------------------------------------------------------------------

    def _block_entered(self, engine: int, address: int, size: int, _argument: int | None) -> None:
        try:
            libunicorn.reg_read(engine, UC_X86_REG_RSP, ctypes.byref(self._rsp))
            self._entered.append((address, size, self._rsp.value))
            if self._stop:
                self._stop = False
                stop_engine(engine)
            if len(self._entered) > _MANY_ENTERED:
                self._work_off()
        except BaseException as error:  # the engine can't propagate it: end() raises it
            self._error = self._error or error
            stop_engine(engine)

    def _work_off(self) -> None:
        entered, self._entered = self._entered, []
        for address, size, rsp in entered:
            known = self._known.get((address, size)) or self._learn(address, size)
            tip, self._tip = self._tip, known.block
            if tip is not None and tip.end is BlockEnd.REP and tip.end_address == address:
                continue
            if self._held is not None:
                self._execute(None)
            self._held = known, rsp

    def _finish(self, rip: int) -> None:
        """Process the end of a run at ``rip``: the last block was executed up to there."""
        if self._held is None or self._tip is None:
            return
        position = self._tip.position(rip)
        self._execute(None if position is None else len(self._tip.addresses) - position)
        self._held = self._tip = None

    def _execute(self, missing: int | None) -> None:
        """Process the held block, of which ``missing`` instructions were not executed, None for a complete block."""
        stack, held = self._stack, self._held
        assert stack is not None
        assert held is not None
        known, rsp = held
        way = self._way(stack, known.block.address, rsp)
        host_calls = self.vcpu.machine.host_calls
        if known.block.address == host_calls.return_address:
            stack.leave_above(rsp)
        else:
            stack.execute(known.segments, len(known.block.addresses) - (missing or 0), rsp, way)
        self._ways[stack] = Way.PLAIN if missing is not None else _ENDS.get(known.block.end, Way.PLAIN)

    def _way(self, stack: CallStack, address: int, rsp: int) -> Way:
        """Way in which a block was reached: by the end of the block before, or by registers set by the host."""
        way = self._ways.get(stack, Way.PLAIN)
        left = self._left.pop(stack, None)
        if left is None and way is not Way.PLAIN:
            return way
        if rsp in self._starts:
            self._starts.remove(rsp)
            return Way.START
        if left is not None and address != left[0]:
            if rsp == left[1] - 8:
                return Way.CALL
            if rsp == left[1] + 8:
                return Way.RETURN
        return way

    def _learn(self, address: int, size: int) -> _Known:
        block = decode_block(self.vcpu.read_code, address, size)
        is_stub = self.vcpu.machine.host_calls.is_stub
        places = self._places(block)
        segments = []
        for (function, phase), group in groupby(places, _BELONGS):
            addresses = [place.address for place in group]
            own = tuple(address for address in addresses if not is_stub(address))
            segments.append(Segment(addresses[0], function, phase, own))
        for place in places:
            if not is_stub(place.address):
                self._recording.places[place.address] = place
        known = self._known[address, size] = _Known(block, tuple(segments))
        return known

    def _places(self, block: Block) -> list[ExecutedInsn]:
        machine = self.vcpu.machine
        code = self.vcpu.read_code(block.address, block.size)
        places = []
        for address, after in zip(block.addresses, (*block.addresses[1:], block.address + block.size), strict=True):
            here = code[address - block.address : after - block.address]
            image = machine.images.at(address)
            line = image.line_at(address) if image is not None else None
            phase = line.phase if line is not None else None
            text, comment = "", ""
            if image is not None and line is not None and image.code_of(line) == here:
                text, comment = line.text, line.comment
            else:
                text = _disassembled(here, address)
            function = machine.function_at(address) or OTHER
            places.append(ExecutedInsn(address, here, text, comment, phase, function, image.address if image else None))
        return places


def _disassembled(code: bytes, address: int) -> str:
    try:
        return decode(code, address)[0].text
    except (AsmError, IndexError):
        return f".byte {code.hex(' ')}"
