"""What a function finds in its registers when it begins."""

from trampoline.verifier.env import Env


def set_main_arguments(env: Env) -> None:
    """R1 of ``env.frame`` when the program begins: its context."""
    from trampoline.verifier.kinds import Kind
    from trampoline.verifier.state import Reg

    env.set_reg(1, Reg(Kind.PTR_TO_CTX))


def set_global_arguments(env: Env, subprog: int) -> None:
    """R1 to R5 of ``env.frame``, in which the global function ``subprog`` is verified alone: what its BTF prototype
    says (``btf_prepare_func_args``). Refuses prototypes that cannot be verified.
    """
    env.unsupported("global functions")


def check_global_call(env: Env, subprog: int) -> None:
    """R1 to R5 of ``env.frame`` fit the prototype of the global function that is called (``btf_check_subprog_call``).
    The caller marks R0 to R5 afterwards.
    """
    env.unsupported("calls of global functions")
