"""Calls from BPF to BPF: static and global functions, callbacks, their frames."""

from collections.abc import Callable

from trampoline.verifier.env import Env
from trampoline.verifier.state import FuncFrame

Setup = Callable[[Env, FuncFrame, FuncFrame], None]
"""Fills the callee's R1 to R5 from the caller's registers: (env, caller, callee). It may refuse."""


def push_callback(
    env: Env, subprog: int, setup: Setup, *, returns: tuple[int, int] = (0, 1), kfunc: bool = False
) -> None:
    """A call at ``env.slot`` calls function ``subprog`` back any number of times, while it runs.

    ``returns``: what the callback may return, inclusive. The call goes on to mark R0 to R5 of the frame that is the
    current one now: ``env.frame`` does not change before it returns.
    """
    env.unsupported("callbacks")


def push_async_callback(env: Env, subprog: int, setup: Setup, *, sleepable: bool = False) -> None:
    """The same for a callback that runs later and alone (timers, work queues)."""
    env.unsupported("callbacks")


def push_iteration(env: Env, null: Callable[[FuncFrame], None], again: Callable[[FuncFrame], None]) -> None:
    """``process_iter_next_call``: an iterator's ``next`` at ``env.slot`` gives NULL on one path, an element on another.

    Both are called with the innermost frame of their path, after the call has marked registers, and set R0 and the
    iterator's state there.
    """
    env.unsupported("iterators")
