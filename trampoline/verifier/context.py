"""Access to a program's context, by program type (``is_valid_access`` of ``struct bpf_verifier_ops``)."""

from trampoline.verifier.env import Env


def check_ctx_access(env: Env, regno: int, off: int, size: int, write: bool, value_regno: int) -> None:
    """A load or store of ``size`` bytes at the constant offset ``off`` of the context in register ``regno``.

    ``memory.check_mem_access`` has seen to it that the register's offset is constant and added it to ``off``. Refuses,
    or notes what is learnt (``env.fact.ctx_size``, ``env.accessed_args``, ``env.max_ctx_offset``) and, for a load with
    ``value_regno`` >= 0, puts what was loaded into that register.
    """
    env.unsupported("access to the context")
