"""Parts of the trampoline's preparation that a program uses."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Uses:
    """Data that a program reads besides its arguments; a caller built for the program omits the rest.

    A program that reads more than it declares sees stale values.
    """

    func_ip: bool = False
    """bpf_get_func_ip: the word at ctx[-2]. Kernels record this for every program (``call_get_func_ip``)."""
    arg_cnt: bool = True
    """The word at ctx[-1]: bpf_get_func_arg_cnt, bpf_get_func_arg, bpf_get_func_ret."""
    run_ctx: bool = True
    """``current->bpf_ctx``: bpf_get_attach_cookie, and helpers that use the run context."""
    session_cookie: bool = False
    """bpf_session_cookie of an fsession program."""


NOTHING = Uses(arg_cnt=False, run_ctx=False)
"""The uses of a program that reads at most its arguments."""
