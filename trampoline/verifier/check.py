"""The verification of one program: what is done in which order (``bpf_check``)."""

from trampoline.bpf.program import Program
from trampoline.verifier.env import Capabilities, Env
from trampoline.verifier.kernel import KernelView
from trampoline.verifier.result import Verified
from trampoline.verifier.target import Target


def bpf_check(
    program: Program,
    kernel: KernelView,
    target: Target | None = None,
    *,
    capabilities: Capabilities | None = None,
    log_level: int = 2,
) -> Verified:
    """Verifies a program whose load attributes and target are checked.

    Raises VerifierError where the kernel refuses, Unsupported where verifier-lite cannot say.
    """
    env = Env(program, kernel, target, capabilities, log_level)
    env.unsupported("programs")
