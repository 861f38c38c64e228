"""The calls of a target (a function with programs on it, or a compiled object) as paths."""

import re
from dataclasses import replace

from trampoline.bpf.errors import TrampolineError
from trampoline.lab.workload import TargetOptions, open_target
from trampoline.tools.icount.capture import path_of_call
from trampoline.tools.icount.counted_path import CountedPath
from trampoline.tools.run import MAX_INSTRUCTIONS

_ON_CPU = re.compile(r"\)\s*@\s*\d+\s*$")


def target_paths(options: TargetOptions) -> dict[str, CountedPath]:
    """Make each call, one after the other, and count it whole: the function and the programs included.

    By the call's text. Calls are made on CPU 0 unless they say another. TrampolineError for a call given twice; what
    ``open_target`` and calls raise.
    """
    paths: dict[str, CountedPath] = {}
    calls = tuple(text if _ON_CPU.search(text) else f"{text}@0" for text in options.calls)
    with open_target(replace(options, calls=calls)) as ready:
        for call in ready.calls:
            name = " ".join(call.text.split())
            if name in paths:
                raise TrampolineError(f"{name} is given twice: the two would have one name")
            made = ready.lab.call(
                call.address, *call.registers, stack_args=call.stack, cpu=call.cpu, max_instructions=MAX_INSTRUCTIONS
            )
            paths[name] = path_of_call(ready.lab, made)
    return paths
