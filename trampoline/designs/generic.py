"""The design ``generic``: one trampoline with the maximum number of arguments for every function of a link.

Programs see 6 argument slots, or 12 if the function has arguments on the stack; slots that the function does not have
contain arbitrary values. The return value follows the last slot, so programs read arguments and return value with
bpf_get_func_arg and bpf_get_func_ret.
"""

from collections.abc import Hashable
from errno import EOPNOTSUPP
from functools import partial

from emu.kernel.errors import KernelError
from emu.kernel.kernel import Kernel
from trampoline.bpf.boot import Boot
from trampoline.bpf.btf.func_model import MAX_BPF_FUNC_ARGS, MAX_REG_SLOTS, FuncModel
from trampoline.bpf.prog import BpfProg, BpfPrograms
from trampoline.designs.design import Design, DesignInfo, TrampolineDesign
from trampoline.designs.function_images import most_bytes
from trampoline.designs.shared_images import SharedImages, identities, ksym
from trampoline.designs.traits import Traits
from trampoline.image.frame_words import frame_names
from trampoline.image.generator import TrampFlag, arch_prepare_bpf_trampoline
from trampoline.image.tramp_image import BPF_INSN_SAFETY, BpfTrampImage
from trampoline.rules import TrampolineRules
from trampoline.update.bpf_trampoline import BpfTrampoline, Trampolines
from trampoline.update.ftrace_sites import SingleOps
from trampoline.update.target import TraceTarget

KSYM = "generic_trampoline"
"""Prefix of the images' symbols."""


class GenericImages(SharedImages):
    """Source of shared images, generated as for one function, except that the return address at the site identifies the
    function.
    """

    def __init__(self, kernel: Kernel, rules: TrampolineRules) -> None:
        super().__init__(kernel, rules)
        self._slots: dict[tuple[int, ...], int] = {}

    def slots(self, target: TraceTarget) -> int:
        """Number of argument slots that programs see on a function; 0 if its slots do not match those of an image."""
        found = self._slots.get(target.arg_sizes)
        if found is None:
            model = target.model
            args = zip(model.placement(), model.args, strict=True)
            in_regs = [in_regs for (_, in_regs), arg in args for _ in range(arg.slots)]
            if False not in in_regs:
                found = MAX_REG_SLOTS
            else:
                found = MAX_BPF_FUNC_ARGS if in_regs.index(False) == MAX_REG_SLOTS else 0
            self._slots[target.arg_sizes] = found
        return found

    def check(self, target: TraceTarget, prog: BpfProg) -> None:
        """Raises KernelError -EOPNOTSUPP for a function with an argument on the stack while a register is free or used
        by a later one, and for a program that reads the return value in the slot after the function's own arguments:
        their slots differ from the image's.
        """
        super().check(target, prog)
        slots = self.slots(target)
        if not slots:
            raise KernelError(EOPNOTSUPP, f"{target.name} has an argument on the stack although registers are free")
        if prog.accesses_ret and slots != target.nr_regs:
            raise KernelError(
                EOPNOTSUPP, f"{prog.name} reads the return value in slot {target.nr_regs}; here it is in slot {slots}"
            )

    def key(self, trampoline: BpfTrampoline, flags: TrampFlag) -> Hashable:
        offset = trampoline.site - trampoline.target.address
        slots = self.slots(trampoline.target)
        return identities(trampoline.links), self._known(trampoline, flags), offset, slots, trampoline.boot

    @staticmethod
    def _known(trampoline: BpfTrampoline, flags: TrampFlag) -> int | None:
        return trampoline.target.address if flags & TrampFlag.SHARE_IPMODIFY else None

    def generate(self, trampoline: BpfTrampoline, flags: TrampFlag) -> BpfTrampImage:
        kernel, links = self._kernel, trampoline.tramp_links
        if flags & TrampFlag.CALL_ORIG:
            flags |= TrampFlag.ORIG_STACK | TrampFlag.SKIP_FRAME
        model = FuncModel.of_slots("any function", self.slots(trampoline.target))
        size = most_bytes(model.nr_regs, len(links.calls))
        image = BpfTrampImage(kernel, size, ksym(KSYM, model.nr_regs, [call.name for call in links.calls]))
        try:
            made = arch_prepare_bpf_trampoline(
                self._rules,
                trampoline.boot,
                model,
                flags,
                links,
                func_addr=self._known(trampoline, flags),
                address=image.image,
                im=image.address,
                symbols=kernel.symbols,
                site_offset=trampoline.site - trampoline.target.address,
            )
            stack = partial(frame_names, self._rules, made, model, links)
            image.fill(made, len(made.image) + BPF_INSN_SAFETY, stack)
        except BaseException:
            image.discard()
            raise
        return image


def _make(
    kernel: Kernel, rules: TrampolineRules, boot: Boot, programs: BpfPrograms, metadata: str | None
) -> Design:
    images = GenericImages(kernel, rules)
    return TrampolineDesign("generic", Trampolines(kernel, rules, boot, SingleOps(kernel), images))


GENERIC = DesignInfo(
    "generic", _make, traits=Traits(struct_on_stack=False, count_is_actual=False), metadata=()
)
