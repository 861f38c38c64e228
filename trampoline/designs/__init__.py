"""The designs: ways for programs to get onto functions, behind one interface."""

from collections.abc import Callable

from emu.kernel.kernel import Kernel
from trampoline.bpf_trampoline import Trampolines
from trampoline.designs.design import Design, Entry, TrampolineDesign
from trampoline.designs.function_images import FunctionImages
from trampoline.flavour import Flavour
from trampoline.generator import Boot
from trampoline.sites import OpsEach, SingleOps

__all__ = ["DESIGNS", "Design", "Entry"]


def _per_function(kernel: Kernel, flavour: Flavour, boot: Boot) -> Design:
    """One trampoline a function, attached one by one: a registration and grace periods each."""
    images = FunctionImages(kernel, flavour)
    return TrampolineDesign("per-function", Trampolines(kernel, flavour, boot, OpsEach(kernel), images))


def _batched(kernel: Kernel, flavour: Flavour, boot: Boot) -> Design:
    """What mainline merged: one trampoline a function, one ftrace_ops and one update for a whole link."""
    images = FunctionImages(kernel, flavour)
    return TrampolineDesign("batched", Trampolines(kernel, flavour, boot, SingleOps(kernel), images))


DESIGNS: dict[str, Callable[[Kernel, Flavour, Boot], Design]] = {"per-function": _per_function, "batched": _batched}
"""Every design by its name."""
