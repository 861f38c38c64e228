"""Walks of kernel structures by their BTF: PTR_TO_BTF_ID and the struct behind a map pointer."""

from trampoline.verifier.env import Env


def check_btf_access(env: Env, regno: int, off: int, size: int, write: bool, value_regno: int) -> None:
    """``check_ptr_to_btf_access``: ``off`` is the instruction's offset, without the register's.

    Refuses, or puts what a load gives into ``value_regno`` (where it is >= 0). Called for every PTR_TO_BTF_ID,
    or-null and untrusted ones too: it refuses those that may not be followed. The caller notes
    ``env.fact.pointee``: BTF_ID by default, which this may set to TRUSTED.
    """
    env.unsupported("access through a BTF pointer")


def check_map_ptr_access(env: Env, regno: int, off: int, size: int, write: bool, value_regno: int) -> None:
    """``check_ptr_to_map_access``: a load from the kernel's struct of a map, CONST_PTR_TO_MAP."""
    env.unsupported("access to a map's structure")


def check_tp_buffer_access(env: Env, regno: int, off: int, size: int) -> None:
    """``check_tp_buffer_access`` of a writable raw tracepoint; the caller marks the loaded register."""
    env.unsupported("access to a tracepoint's buffer")
