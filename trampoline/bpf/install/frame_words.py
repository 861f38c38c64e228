"""Names of the words in a compiled program's frame."""

from emu.machine.frame_words import StackNames
from trampoline.bpf.jit.jit_input import JitFunc
from trampoline.bpf.jit.prologue import JitFrame
from trampoline.bpf.jit.rules import JitRules

_RBP = -16
"""Position of rbp: below the return address."""


def stack_words(func: JitFunc, rules: JitRules) -> StackNames:
    """Names of a function's stack words; registers that it pushes are named elsewhere."""
    frame = JitFrame.of(func, rules)
    found = {_RBP: "saved rbp"}
    for offset in range(8, frame.stack + 1, 8):
        found[_RBP - offset] = f"r10 - {offset}"
    for word in range(frame.counter_words):
        name = "tail_call_cnt" if frame.counter_words == 1 or word else "tail_call_cnt, of the entry"
        found[_RBP - frame.stack - 8 * (word + 1)] = name
    for word in range(frame.out_args // 8):
        found[_RBP - frame.depth + 8 * word] = f"arg{word + 7} of a call"
    return StackNames(found)
