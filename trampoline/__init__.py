"""The kernel's BPF trampoline machinery, generated and run instruction by instruction on an emulated x86_64."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trampoline.bpf.errors import TrampolineError
    from trampoline.lab import Lab

__version__ = "0.1.0"

__all__ = ["Lab", "TrampolineError", "__version__"]


def __getattr__(name: str) -> Any:
    # Not before somebody asks: the pytest plugin is loaded by every run of pytest, and must not load the machine.
    if name == "TrampolineError":
        from trampoline.bpf.errors import TrampolineError

        return TrampolineError
    if name == "Lab":
        from trampoline.lab import Lab

        return Lab
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
