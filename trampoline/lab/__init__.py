"""The laboratory: a kernel with programs, links and calls."""

from trampoline.lab.lab import Lab
from trampoline.lab.loaded_object import LoadedObject
from trampoline.lab.workload import Workload, open_workload

__all__ = ["Lab", "LoadedObject", "Workload", "open_workload"]
