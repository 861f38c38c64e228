"""Views of a kernel under a debugger: registers, memory, code, frames, events, vCPUs."""

from bisect import bisect_right
from collections.abc import Sequence

from asm.decode import decode
from asm.errors import AsmError
from asm.image import Image
from emu.debug.errors import DebugError
from emu.debug.frames import Activation, FrameSlot, StackFrame, activations
from emu.debug.history import ActionHistory
from emu.debug.views import CallSite, CodeLine, CpuState, PatchedBytes
from emu.errors import EmuError
from emu.events import Event
from emu.kernel.kernel import Kernel
from emu.machine.registers import SAVED
from emu.threads.thread import TaskThread, Thread

REGISTERS = (*SAVED[:-1], "eflags", "gs_base")
"""Names of registers for ``Sight.registers``."""
OUTSIDE = "(outside)"
"""Return address of the outermost function."""
MANY_IMAGES = 2000
"""Limit on the size of listings to search; above it, checking each instruction of a run is faster."""
_LONGEST = 15
"""Maximum length of an instruction in bytes."""


class Sight:
    """The current state of a history. Reading changes nothing."""

    def __init__(self, kernel: Kernel, record: ActionHistory) -> None:
        self.kernel = kernel
        self._record = record
        self._current: Thread | None = None

    @property
    def threads(self) -> tuple[Thread, ...]:
        """The threads that exist at this position."""
        return tuple(self._record.threads)

    @property
    def thread(self) -> Thread:
        """The current thread. DebugError if there is none."""
        threads = self._record.threads
        if not threads:
            raise DebugError("no thread: start one with call(function, ...)")
        if self._current not in threads:
            self._current = threads[-1]
        assert self._current is not None
        return self._current

    @property
    def position(self) -> int:
        """Number of moves made since the start."""
        return self._record.position

    def _task_thread(self, thread: Thread | None) -> TaskThread:
        thread = thread or self.thread
        if thread not in self._record.threads:
            raise DebugError(f"{thread.name} does not exist here")
        if not isinstance(thread, TaskThread):
            raise DebugError(f"{thread.name} is an operation: it has no registers")
        return thread

    # Time -----------------------------------------------------------------------------------------------------------


    @property
    def rip(self) -> int:
        """rip of the current thread; 0 for an operation."""
        thread = self.thread
        return self._record.register(thread) if isinstance(thread, TaskThread) else 0

    def registers(self, thread: Thread | None = None) -> dict[str, int]:
        """General registers, rip, eflags and gs_base of a task, by default the current one. DebugError."""
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
        return dict(zip(REGISTERS, [*values, gs_base], strict=True))

    def read(self, address: int, size: int) -> bytes:
        """Guest memory; text as the current thread's vCPU sees it. NotMapped."""
        thread = self.thread if self._record.threads else None
        cpu = thread.cpu if thread is not None and thread.cpu is not None else 0
        return self.kernel.machine.vcpus[cpu].read_code(address, size)

    def address_of(self, where: int | str) -> int:
        """Address of a symbol or ``symbol+offset``, or the address itself. KernelError (-ENOENT), DebugError."""
        if isinstance(where, int):
            return where
        name, plus, offset = where.partition("+")
        try:
            return self.kernel.kallsyms.address(name) + (int(offset, 0) if plus else 0)
        except ValueError:
            raise DebugError(f"{where!r} is not symbol+offset") from None

    def symbol(self, address: int) -> str:
        """The function or image at an address, with the offset; the address if it is unknown."""
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
        """The phase of the instruction at an address, by default the current one."""
        return self.kernel.machine.images.phase(self.rip if address is None else address)

    def addresses_of_phase(self, phase: str) -> list[int] | None:
        """All instructions of a phase in the registered images; None if some images are built only on request and may
        have phases, or if there are very many.
        """
        machine = self.kernel.machine
        images, texts = machine.images.listed(), machine.images.texts
        if len(images) > MANY_IMAGES or any(text.start >= machine.layout.modules for text in texts):
            return None
        return [
            image.address + line.offset
            for image in images
            for line in image.lines
            if line.phase == phase
        ]

    def code(self, around: int | None = None, lines: int = 20) -> list[CodeLine]:
        """The instructions around an address, by default the current one; only of its image."""
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
        phase = line.phase
        patch = self._patch_of(address, line.size)
        return CodeLine(address, code, text, line.comment, phase, self.symbol(address), patch)

    def _text_of(self, code: bytes, address: int) -> str:
        """Disassembly of an instruction that differs from the image's: it was patched."""
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
        """State of a patch of an instruction's bytes, in words; empty if there is none."""
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
        """The call chain of a task, innermost first; each entry with the address where it resumes."""
        task = self._task_thread(thread)
        return [
            CallSite(one.rip, self.symbol(one.rip), one.end, self.phase(one.rip - bool(level)))
            for level, one in enumerate(self.activations(task))
        ]

    def activations(self, thread: Thread | None = None) -> list[Activation]:
        """The active functions of a task, innermost first, with their frames."""
        task = self._task_thread(thread)
        if task.is_done:
            return []
        rip, rsp, rbp = (self._record.register(task, name) for name in ("rip", "rsp", "rbp"))
        return list(activations(self.kernel, rip, rsp, rbp))

    def frame(self, thread: Thread | None = None, level: int = 0) -> StackFrame:
        """The stack frame of an active function, slot by slot: 0 is the innermost, 1 its caller.

        DebugError for an unknown level. A task that has ended has a frame without slots.
        """
        found = self.activations(thread)
        if not found and not level:
            return StackFrame("", "rsp", ())
        if not 0 <= level < len(found):
            raise DebugError(f"no frame {level}: there are {len(found)}")
        return self._frame_of(found[level])

    def _frame_of(self, one: Activation) -> StackFrame:
        if one.end is None:
            return StackFrame(self.symbol(one.rip), "rsp", ())
        names, slots = one.named(), list[FrameSlot]()
        is_rbp = one.depth is not None and one.depth.rbp is not None
        base = one.rbp if is_rbp else one.rsp
        top = max([one.end, (one.return_slot or 0) + 8, *(address + 8 for address in names)])
        for address in range(top - 8, one.rsp - 8, -8):
            value, name = self.kernel.machine.read_u64(address), names.get(address, "")
            if address == one.return_slot:
                name = "return address"
            if name.startswith("return address"):
                name = f"{name} → {self.symbol(value)}"
            slots.append(FrameSlot(address, address - base, name, value, self.words(value, name, one)))
        return StackFrame(self.symbol(one.rip), "rbp" if is_rbp else "rsp", tuple(slots))

    def words(self, value: int, name: str = "", where: Activation | None = None) -> str:
        """Text for a value: a symbol, or an object in guest memory; empty if unknown. ``name``: of the slot that holds
        it, ``where``: of that slot's frame.
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
        """Events up to this position, each with the position after its move."""
        events = self._record.events
        return events[: bisect_right(events, self.position, key=lambda found: found[0])]

    def vcpus(self) -> list[CpuState]:
        """Every vCPU: its thread, its position, and text that it has not adopted."""
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
