"""A design of one's own under the property-based tests: what it documents is what is checked."""

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from emu.kernel.kernel import Kernel
from trampoline.bpf.boot import Boot
from trampoline.bpf.prog import BpfPrograms
from trampoline.designs import Design, DesignInfo
from trampoline.designs.design import TrampolineDesign
from trampoline.designs.function_images import FunctionImages
from trampoline.rules import TrampolineRules
from trampoline.testing import Order, Traits, lab_machine
from trampoline.update.bpf_trampoline import Trampolines
from trampoline.update.ftrace_sites import SingleOps

FEW = settings(
    max_examples=10,
    stateful_step_count=15,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def mine(kernel: Kernel, rules: TrampolineRules, boot: Boot, programs: BpfPrograms, metadata: str | None) -> Design:
    """An image for each function, patched in batches."""
    images = FunctionImages(kernel, rules)
    return TrampolineDesign("mine", Trampolines(kernel, rules, boot, SingleOps(kernel), images))


MINE = DesignInfo("mine", mine, traits=Traits(image_per_function=True), metadata=())


def main() -> None:
    run_state_machine_as_test(lab_machine(MINE), settings=FEW)
    print("newest first: as documented")
    try:
        run_state_machine_as_test(lab_machine(MINE, Traits(order=Order.OLDEST_FIRST)), settings=FEW)
    except AssertionError as error:
        print(f"oldest first: found out, {str(error).splitlines()[0][:60]}...")


if __name__ == "__main__":
    main()
