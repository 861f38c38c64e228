"""Access to memory by what the register points to, from instructions and from calls."""

from trampoline.verifier.env import Env


def check_mem_access(
    env: Env, regno: int, off: int, size: int, write: bool, value_regno: int, *, strict: bool = False
) -> None:
    """``check_mem_access``: ``size`` bytes at register ``regno`` + ``off``, for the instruction at ``env.slot``.

    Marks ``value_regno`` of a load (where it is >= 0), the stack of a store; ``value_regno`` -1 of a store is any
    number. Refuses with the kernel's errno.
    """
    env.unsupported("memory")


def check_helper_mem_access(
    env: Env, regno: int, size: int, *, write: bool, zero_ok: bool = False, raw: bool = False
) -> int:
    """``check_helper_mem_access``: a call reads or writes ``size`` bytes at register ``regno``.

    ``raw``: the callee only writes, so that stack need not be initialised (``meta->raw_mode``). Gives how many bytes
    of stack the caller has to mark as written when all arguments are checked, with ``mark_written``: ``size``, or 0.
    """
    env.unsupported("memory of calls")


def check_mem_size_reg(
    env: Env, regno: int, size_regno: int, *, write: bool, zero_ok: bool = False, raw: bool = False
) -> int:
    """``check_mem_size_reg``: as ``check_helper_mem_access`` with the size in a register; gives the same."""
    env.unsupported("memory of calls")


def mark_written(env: Env, regno: int, size: int) -> None:
    """A call has written ``size`` bytes of stack at register ``regno``."""
    env.unsupported("memory of calls")


def check_ptr_off_reg(env: Env, regno: int, *, fixed_off_ok: bool = False) -> None:
    """``__check_ptr_off_reg``: the register's offset is constant, and 0 unless ``fixed_off_ok``."""
    env.unsupported("memory of calls")


def check_map_access(env: Env, regno: int, off: int, size: int, *, zero_ok: bool = False) -> None:
    """``check_map_access``: ``size`` bytes at PTR_TO_MAP_VALUE ``regno`` + ``off`` are within the value."""
    env.unsupported("map values")


def check_mem_region(env: Env, regno: int, off: int, size: int, mem_size: int, *, zero_ok: bool = False) -> None:
    """``check_mem_region_access``: the same for a region of ``mem_size`` bytes that the register points to."""
    env.unsupported("memory regions")


def check_stack_range(env: Env, regno: int, off: int, size: int, *, write: bool, raw: bool = False) -> int:
    """``check_stack_range_initialized``: a call uses ``size`` bytes of stack at register ``regno`` + ``off``. Gives as
    ``check_helper_mem_access`` does.
    """
    env.unsupported("stack of calls")
