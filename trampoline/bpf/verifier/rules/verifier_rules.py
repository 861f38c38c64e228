"""All rules of a kernel release for the verifier."""

from dataclasses import dataclass

from trampoline.bpf.helpers.rules import NO_HELPERS, HelperRules
from trampoline.bpf.kernel_version import NO_VERSION, KernelVersion
from trampoline.bpf.verifier.rules.call_rules import CallRules
from trampoline.bpf.verifier.rules.engine_rules import EngineRules
from trampoline.bpf.verifier.rules.kfunc_rules import KfuncRules
from trampoline.bpf.verifier.rules.load_rules import LoadRules
from trampoline.bpf.verifier.rules.target_rules import TargetRules


@dataclass(frozen=True, slots=True, eq=False)
class VerifierRules:
    """One release's verifier."""

    load: LoadRules
    target: TargetRules
    engine: EngineRules
    calls: CallRules
    kfuncs: KfuncRules
    helpers: HelperRules = NO_HELPERS
    """Helpers and kernel functions that programs call. From the release."""
    version: KernelVersion = NO_VERSION
    """Compared with the marks of the lists. From the release."""
