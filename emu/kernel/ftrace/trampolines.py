"""Private trampolines: a copy of a stub for one ops, with its callback and struct in it (``create_trampoline``)."""

from functools import partial

from asm import assemble
from emu.kernel.ftrace.ops import FtraceOps, FtraceOpsFlag
from emu.kernel.mm.execmem import ExecMem
from emu.kernel.routines import ftrace as stubs
from emu.kernel.structs import pt_regs
from emu.kernel.text.kallsyms import Kallsyms
from emu.machine.frame_words import StackNames

NAME = "ftrace_trampoline"
_FIELDS = pt_regs.asm_symbols()


class FtraceTrampolines:
    """The private trampolines of one kernel (arch/x86/kernel/ftrace.c)."""

    def __init__(self, execmem: ExecMem, kallsyms: Kallsyms) -> None:
        self._execmem, self._kallsyms = execmem, kallsyms

    def create(self, ops: FtraceOps, callback: int) -> None:
        """Make the trampoline of an ops that calls ``callback``. -ENOMEM; then nothing stays allocated."""
        names = "ftrace_ops_callback", "ftrace_ops_pointer"
        saves = ops.flags & FtraceOpsFlag.SAVE_REGS
        text = stubs.regs_caller(*names, direct=False) if saves else stubs.caller(*names)
        text += f"ftrace_ops_pointer:\n    .quad {ops.address:#x}\n"
        symbols = {**_FIELDS, "ftrace_ops_callback": callback}
        size = len(assemble(text, self._kallsyms.address("ftrace_caller"), symbols))
        ops.trampoline = self._execmem.alloc(size, NAME)
        try:
            image = assemble(text, ops.trampoline, symbols, name=NAME)
        except BaseException:
            self._execmem.free(ops.trampoline)
            ops.trampoline = 0
            raise
        self._execmem.fill(image, partial(StackNames, stubs.stack_words(saves_all=bool(saves))))
        self._kallsyms.add(NAME, ops.trampoline, size)
        ops.flags |= FtraceOpsFlag.ALLOC_TRAMP

    def free(self, address: int) -> None:
        """Free a trampoline that no CPU can be in (``arch_ftrace_trampoline_free``)."""
        symbol = self._kallsyms.at(address)
        assert symbol is not None
        self._kallsyms.remove(symbol)
        self._execmem.free(address)
