"""The kernel's BPF trampoline machinery, generated and run instruction by instruction on an emulated x86_64."""

from trampoline.errors import TrampolineError

__version__ = "0.1.0"

__all__ = ["TrampolineError", "__version__"]
