"""What cannot be rewritten."""

from trampoline.bpf.errors import TrampolineError


class RewriteError(TrampolineError):
    """A program needs what the kernel has no address for, or a rewriting that is not modelled."""
