"""An image for each function: what kernels make (``per-function``, ``batched``)."""

from collections.abc import Sequence
from functools import partial

from emu.kernel.kernel import Kernel
from trampoline.bpf.errors import ENOTSUPP, KernelError
from trampoline.bpf.prog import BpfProg
from trampoline.image.frame_words import frame_names
from trampoline.image.generator import TrampFlag
from trampoline.image.stamp import Stamps
from trampoline.image.tramp_image import BPF_INSN_SAFETY, BpfTrampImage
from trampoline.rules import TrampolineRules
from trampoline.update.bpf_trampoline import KSYM_PREFIX, BpfTrampoline
from trampoline.update.target import LinkEntry, TraceTarget

FIXED_BYTES, BYTES_PER_SLOT, BYTES_PER_PROGRAM = 384, 48, 192
"""More than any image takes: for itself, for each argument slot, for each program."""


def most_bytes(slots: int, programs: int) -> int:
    """More than an image takes that is generated into what was allocated before."""
    return FIXED_BYTES + BYTES_PER_SLOT * slots + BYTES_PER_PROGRAM * programs


class FunctionImages:
    """Makes them, each shape assembled once."""

    def __init__(self, kernel: Kernel, rules: TrampolineRules) -> None:
        self._kernel, self._rules = kernel, rules
        self._stamps = Stamps()

    def check(self, target: TraceTarget, prog: BpfProg) -> None:
        """-ENOTSUPP for more argument slots than the release takes."""
        most = self._rules.max_slots
        # An argument takes two slots at most.
        if 2 * len(target.arg_sizes) > most and target.nr_regs > most:
            raise KernelError(ENOTSUPP, f"{target.name} needs {target.nr_regs} argument slots")

    def hold(self, entries: Sequence[LinkEntry]) -> None:
        """Images hold everything themselves."""

    def release(self, entries: Sequence[LinkEntry]) -> None:
        """Nothing to give back."""

    def make(self, trampoline: BpfTrampoline, flags: TrampFlag) -> BpfTrampImage:
        """A filled image. Where the kernel makes a dry run for the size, we allocate enough and give back the rest."""
        kernel, target, links = self._kernel, trampoline.target, trampoline.tramp_links
        image = BpfTrampImage(kernel, most_bytes(target.model.nr_regs, len(links.calls)), f"{KSYM_PREFIX}{target.key}")
        try:
            made = self._stamps.prepare(
                self._rules,
                trampoline.boot,
                target.model,
                flags,
                links,
                func_addr=target.address,
                address=image.image,
                im=image.address,
                symbols=kernel.symbols,
                site_offset=target.site_offset,
            )
            stack = partial(frame_names, self._rules, made, target.model, links)
            image.fill(made, len(made.image) + BPF_INSN_SAFETY, stack)
        except BaseException:
            image.discard()
            raise
        return image

    def write(self) -> None:
        """They are written when they are made."""

    def time_programs(self, enabled: bool) -> bool:
        """The functions around programs have a static key for that."""
        return False

    def is_outdated(self, before: TrampFlag, flags: TrampFlag) -> bool:
        """The original must be called where livepatch wants it, through the return address (ORIG_STACK)."""
        if flags & TrampFlag.SHARE_IPMODIFY:
            return before & (TrampFlag.CALL_ORIG | TrampFlag.ORIG_STACK) == TrampFlag.CALL_ORIG
        return bool(before & TrampFlag.ORIG_STACK)
