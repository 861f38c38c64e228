"""The debugger that users have: ``emu.debug`` over a laboratory."""

from collections.abc import Iterable

from emu.debug import Debugger as KernelDebugger
from emu.debug import Thread
from trampoline.debug.frame import Frame, Slot
from trampoline.lab import Tracing


class Debugger(KernelDebugger):
    """Threads of a laboratory's kernel. ``roots``: Python objects beside it that operations change."""

    def __init__(self, lab: Tracing, roots: Iterable[object] = ()) -> None:
        self.lab = lab
        super().__init__(lab.kernel, [lab, *roots])

    def frame(self, thread: Thread | None = None) -> Frame:
        """The stack frame of the function in which a task is, slot by slot."""
        registers = self.registers(thread)
        machine = self.kernel.machine
        rsp, calls = registers["rsp"], self.backtrace(thread)
        if not calls or calls[0].frame is None:
            return Frame(calls[0].name if calls else "", "rsp", ())
        end = calls[0].frame
        slots = []
        for address in range(end - 8, rsp - 8, -8):
            value = machine.read_u64(address)
            name = f"return address → {self.symbol(value)}" if address == end - 8 else ""
            slots.append(Slot(address, address - rsp, name, value))
        return Frame(calls[0].name, "rsp", tuple(slots))
