"""Debugger of a laboratory's kernel: ``emu.debug`` with programs, trampolines and prototypes."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from asm.image import Image
from emu.debug import Breakpoint, CodeLine, StackFrame
from emu.debug import Debugger as KernelDebugger
from emu.debug.frames import Activation
from trampoline.bpf.btf.func_model import FuncModel
from trampoline.bpf.install.listing import Listing
from trampoline.designs.tracing_multi_v1_caller import SIX_ARGUMENTS
from trampoline.lab import Lab
from trampoline.phases import PHASES

ALL_REGISTERS = 6
"""Argument registers of the calling convention."""


@dataclass(frozen=True)
class AtProgram(Breakpoint):
    """Stops before the first instruction of a program: of any program, or of the one with this name."""

    name: str | None = None

    def addresses(self, debugger: KernelDebugger) -> Iterable[int]:
        assert isinstance(debugger, BpfDebugger)
        loaded = debugger.lab.programs.loaded.values()
        return [prog.bpf_func for prog in loaded if self.name is None or prog.name == self.name]


class BpfDebugger(KernelDebugger):
    """Threads of a laboratory's kernel. ``roots``: further Python objects that operations change."""

    phases = PHASES

    def __init__(
        self, lab: Lab, roots: Iterable[object] = (), *, restored: Callable[[], None] | None = None
    ) -> None:
        self.lab = lab
        super().__init__(lab.kernel, [lab, *roots], restored=restored)

    def goal(self, what: str) -> Breakpoint:
        """As in ``emu.debug.Debugger``; a program is reached at the start of its own code."""
        return AtProgram() if what == "program" else super().goal(what)

    # Programs -------------------------------------------------------------------------------------------------------

    def program_at(self, address: int | None = None) -> str | None:
        """Name of the program whose code contains an address (default: the current instruction)."""
        address = self.rip if address is None else address
        for prog in self.lab.programs.loaded.values():
            if prog.bpf_func <= address < prog.bpf_func + max(prog.size, 1):
                return prog.name
        found = self._installed_at(address)
        return self.lab.programs.loaded[found[0]].name if found is not None else None

    def _installed_at(self, address: int) -> tuple[int, Listing] | None:
        """Address of the struct bpf_prog of the compiled program at an address, and its listing there."""
        if "installer" not in vars(self.lab):
            return None
        for prog, installed in self.lab.installer.installed.items():
            for listing in installed.functions:
                if listing.image.address <= address < listing.image.address + len(listing.image):
                    return prog, listing
        return None

    def code_line(self, address: int, image: Image | None = None) -> CodeLine:
        """As in ``emu.debug.Debugger``; with the eBPF instruction and the source line that were compiled to it."""
        line = super().code_line(address, image)
        installed = self._installed_at(address)
        listing = installed[1] if installed is not None else None
        slot = listing.slot_at(address - listing.image.address) if listing is not None else None
        if listing is None or slot is None:
            return line
        source = listing.line_of(slot)
        where = f"{source}: {source.text.strip()}" if source is not None else ""
        return replace(line, comment="", ebpf=listing.insn_text(slot), source=where)

    def _frame_of(self, one: Activation) -> StackFrame:
        frame = super()._frame_of(one)
        if not any(slot.name == SIX_ARGUMENTS for slot in frame.slots):
            return frame
        # The shared stub of tracing-multi-v1 serves every argument count: the return value follows the last argument.
        count = frame["nr_args"].value
        renamed = {SIX_ARGUMENTS: "return value" if count == ALL_REGISTERS else ""}
        renamed[f"arg{count + 1}"] = "return value"
        slots = [
            replace(slot, name=renamed[slot.name], words="") if slot.name in renamed else slot for slot in frame.slots
        ]
        return replace(frame, slots=tuple(slots))

    # Frames ---------------------------------------------------------------------------------------------------------

    def words(self, value: int, name: str = "", where: Activation | None = None) -> str:
        """As in ``emu.debug.Debugger``; with the prototype's name for an argument."""
        known = super().words(value, name, where)
        if not name.startswith("arg") or where is None:
            return known
        model = self._model_of(where)
        if model is None:
            return known
        words = [f"{arg.type} {arg.name}".strip() for arg in model.args for _ in range(arg.slots)]
        number = name.removeprefix("arg").split(" ")[0]
        position = int(number) - 1 if number.isdigit() else len(words)
        named = words[position] if position < len(words) else ""
        return ", ".join(part for part in (named, known) if part)

    def _model_of(self, where: Activation) -> FuncModel | None:
        """The prototype of the function that the trampoline runs for."""
        ip = next((at for at, name in where.named().items() if name == "ip"), None)
        function = self.kernel.machine.read_u64(ip) if ip is not None else 0
        return self.lab.programs.model_at(where.rip, function)
