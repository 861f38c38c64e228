"""What a run executed, in order and exactly: calls, phases and events by vCPU, and how often each instruction ran.

``record(kernel)`` watches every vCPU while a block runs; the modules beside it write a ``Recording`` down: ``chrome``
(Perfetto, chrome://tracing), ``speedscope``, ``callgrind`` (KCachegrind, callgrind_annotate), ``collapsed`` (flame
graph tools).
"""

from emu.recording.model import CallNode, ExecutedInsn, Mark, NodeKind, Recording, TreeChange
from emu.recording.recorder import record

__all__ = ["CallNode", "ExecutedInsn", "Mark", "NodeKind", "Recording", "TreeChange", "record"]
