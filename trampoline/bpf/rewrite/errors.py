"""Error of rewriting."""

from trampoline.bpf.errors import TrampolineError


class RewriteError(TrampolineError):
    """A program needs a kernel address that is unknown, or a rewriting that is not modelled."""
