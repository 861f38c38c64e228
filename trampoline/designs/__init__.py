"""The designs: ways for programs to get onto functions, behind one interface."""

from emu.kernel.kernel import Kernel
from trampoline.bpf.boot import Boot
from trampoline.bpf.prog import BpfPrograms
from trampoline.designs.design import Design, Factory, LinkEntry, TrampolineDesign
from trampoline.designs.function_images import FunctionImages
from trampoline.designs.generic import GenericImages
from trampoline.designs.specialised import TramplabImages
from trampoline.designs.tracing_multi import seed_v1, seed_v2
from trampoline.kfunc_md.defects import SeedDefects
from trampoline.kfunc_md.kfunc_mds import backend_of
from trampoline.kfunc_md.padding import SIZE as PADDING_SIZE
from trampoline.rules import TrampolineRules
from trampoline.update.bpf_trampoline import Trampolines
from trampoline.update.ftrace_sites import OpsEach, SingleOps

__all__ = ["DESIGNS", "METADATA", "Design", "Factory", "LinkEntry"]


def _per_function(
    kernel: Kernel, rules: TrampolineRules, boot: Boot, programs: BpfPrograms, metadata: str | None
) -> Design:
    """One trampoline a function, attached one by one: a registration and grace periods each."""
    images = FunctionImages(kernel, rules)
    return TrampolineDesign("per-function", Trampolines(kernel, rules, boot, OpsEach(kernel), images))


def _batched(kernel: Kernel, rules: TrampolineRules, boot: Boot, programs: BpfPrograms, metadata: str | None) -> Design:
    """What mainline merged: one trampoline a function, one ftrace_ops and one update for a whole link."""
    images = FunctionImages(kernel, rules)
    return TrampolineDesign("batched", Trampolines(kernel, rules, boot, SingleOps(kernel), images))


def _generic(kernel: Kernel, rules: TrampolineRules, boot: Boot, programs: BpfPrograms, metadata: str | None) -> Design:
    """One trampoline for the most arguments, for all functions of a link."""
    images = GenericImages(kernel, rules)
    return TrampolineDesign("generic", Trampolines(kernel, rules, boot, SingleOps(kernel), images))


def _tramplab(
    kernel: Kernel, rules: TrampolineRules, boot: Boot, programs: BpfPrograms, metadata: str | None
) -> Design:
    """Callers made for their programs, shared by the functions of a link."""
    backend = backend_of(kernel, metadata or ("padding" if kernel.entry.padding >= PADDING_SIZE else "hash"))
    images = TramplabImages(kernel, rules, programs, backend)
    return TrampolineDesign("specialised", Trampolines(kernel, rules, boot, SingleOps(kernel), images))


DESIGNS: dict[str, Factory] = {
    "per-function": _per_function,
    "batched": _batched,
    "generic": _generic,
    "specialised": _tramplab,
    "tracing-multi-v2": seed_v2("tracing-multi-v2"),
    "tracing-multi-v2-fixed": seed_v2("tracing-multi-v2-fixed", SeedDefects()),
    "tracing-multi-v1": seed_v1("tracing-multi-v1"),
}
"""Every design by its name."""

METADATA: dict[str, tuple[str, ...]] = {"specialised": ("padding", "hash", "flat")}
"""The metadata back ends that a design may have, its own choice first; none for designs that are not here."""
