"""Calls of helpers: whether they may be called, their arguments, what they give."""

from trampoline.bpf.insn import Insn
from trampoline.verifier.env import Env


def check_helper_call(env: Env, insn: Insn) -> None:
    """``check_helper_call``: a call with src 0 of helper ``insn.imm`` at ``env.slot``.

    Checks R1 to R5 of ``env.frame``, marks R0 to R5, notes ``env.fact`` and ``env.uses``. With a callback it calls
    ``frames.push_callback`` once the arguments are checked and before it clobbers the caller's registers.
    """
    env.unsupported("calls of helpers")
