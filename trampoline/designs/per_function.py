"""The designs ``per-function`` and ``batched``: one trampoline a function, as kernels have them."""

from errno import EBUSY

from emu.kernel.kernel import Kernel
from trampoline.bpf.boot import Boot
from trampoline.bpf.prog import BpfPrograms
from trampoline.designs.design import Design, DesignInfo, TrampolineDesign
from trampoline.designs.function_images import FunctionImages
from trampoline.designs.traits import Traits
from trampoline.rules import TrampolineRules
from trampoline.update.bpf_trampoline import Trampolines
from trampoline.update.ftrace_sites import OpsEach, SingleOps


def _one_by_one(
    kernel: Kernel, rules: TrampolineRules, boot: Boot, programs: BpfPrograms, metadata: str | None
) -> Design:
    """A registration and grace periods for each function."""
    images = FunctionImages(kernel, rules)
    return TrampolineDesign("per-function", Trampolines(kernel, rules, boot, OpsEach(kernel), images))


def _batched(
    kernel: Kernel, rules: TrampolineRules, boot: Boot, programs: BpfPrograms, metadata: str | None
) -> Design:
    """The merged form: one ftrace_ops for all functions, one update for a whole link."""
    images = FunctionImages(kernel, rules)
    return TrampolineDesign("batched", Trampolines(kernel, rules, boot, SingleOps(kernel), images))


PER_FUNCTION = DesignInfo(
    "per-function", _one_by_one, traits=Traits(image_per_function=True, site_taken=EBUSY), metadata=()
)
BATCHED = DesignInfo("batched", _batched, traits=Traits(image_per_function=True), metadata=())
