"""The design ``generic``: one trampoline for the most arguments serves every function of a link.

Programs find 6 argument slots whatever the function has, and 12 where it has arguments on the stack: what it does not
have is whatever stood there. So the return value is behind the last slot, and programs get at arguments and return
value with bpf_get_func_arg and bpf_get_func_ret.
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
"""What their symbols begin with."""


class GenericImages(SharedImages):
    """Makes them as kernels make a function's own, except that the return address at the site tells the function."""

    def __init__(self, kernel: Kernel, rules: TrampolineRules) -> None:
        super().__init__(kernel, rules)
        self._slots: dict[tuple[int, ...], int] = {}

    def slots(self, target: TraceTarget) -> int:
        """Argument slots that programs see on a function; 0 where they would not be those of the image."""
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
        """-EOPNOTSUPP for a function with an argument on the stack while a register is free, or used by a later one,
        and for a program that takes the return value from behind the function's own arguments: its slots would not be
        those of the image.
        """
        super().check(target, prog)
        slots = self.slots(target)
        if not slots:
            raise KernelError(EOPNOTSUPP, f"{target.name} has an argument on the stack although there are registers")
        if prog.accesses_ret and slots != target.nr_regs:
            raise KernelError(
                EOPNOTSUPP, f"{prog.name} reads the return value in slot {target.nr_regs}, where it is in {slots} here"
            )

    def key(self, trampoline: BpfTrampoline, flags: TrampFlag) -> Hashable:
        """See SharedImages."""
        offset = trampoline.site - trampoline.target.address
        slots = self.slots(trampoline.target)
        return identities(trampoline.links), self._known(trampoline, flags), offset, slots, trampoline.boot

    @staticmethod
    def _known(trampoline: BpfTrampoline, flags: TrampFlag) -> int | None:
        return trampoline.target.address if flags & TrampFlag.SHARE_IPMODIFY else None

    def generate(self, trampoline: BpfTrampoline, flags: TrampFlag) -> BpfTrampImage:
        """See SharedImages."""
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
