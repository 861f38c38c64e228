"""Exact recordings of runs: calls, phases and events by vCPU, in order, and executions of each instruction.

``record(kernel)`` watches every vCPU while a block runs; the modules of ``export`` write a ``Recording``: ``chrome``
(Perfetto, chrome://tracing), ``speedscope``, ``callgrind`` (KCachegrind, callgrind_annotate), ``collapsed`` (flame
graph tools).
"""

from emu.recording.model import CallNode, ExecutedInsn, Mark, NodeKind, Recording, TreeChange
from emu.recording.recorder import record

__all__ = ["CallNode", "ExecutedInsn", "Mark", "NodeKind", "Recording", "TreeChange", "record"]
