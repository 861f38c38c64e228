"""What a program uses of what trampolines prepare for it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Uses:
    """What a program reads beside its arguments; callers that are made for it leave the rest out.

    A program that reads more than it says sees whatever stands there.
    """

    func_ip: bool = False
    """bpf_get_func_ip: the word at ctx[-2]. Kernels know this of every program (``call_get_func_ip``)."""
    arg_cnt: bool = True
    """The word at ctx[-1]: bpf_get_func_arg_cnt, bpf_get_func_arg, bpf_get_func_ret."""
    run_ctx: bool = True
    """``current->bpf_ctx``: bpf_get_attach_cookie, and helpers that look up their run context."""
    session_cookie: bool = False
    """bpf_session_cookie of an fsession program."""


NOTHING = Uses(arg_cnt=False, run_ctx=False)
"""What a program uses that reads its arguments at most."""
