"""Calls of kernel functions by their BTF id."""

from trampoline.bpf.insn import Insn
from trampoline.verifier.env import Env


def check_kfunc_call(env: Env, insn: Insn) -> None:
    """``check_kfunc_call``: a call with src 2 at ``env.slot``.

    As ``calls.check_helper_call``. What an iterator's ``next`` makes of the path it asks of ``frames.push_iteration``.
    """
    env.unsupported("calls of kernel functions")


def check_kfunc_ids(env: Env) -> None:
    """Before the walk (``add_kfunc_call``): refuses calls of what is no kfunc of this kernel, or is GPL only."""
