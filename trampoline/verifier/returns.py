"""What a program, and a callback, may return."""

from trampoline.verifier.env import Env


def check_return_code(env: Env, regno: int = 0, entity: str = "program exit") -> None:
    """``check_return_code``: register ``regno`` at the exit of the main function's frame, or what bpf_throw is given
    (``regno`` 1). The register is initialised and no pointer where pointers may not leak.
    """
    env.unsupported("return values")
