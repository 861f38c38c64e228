"""Exact counts of executed instructions and of unbalanced returns, for any Unicorn x86_64 engine.

Counting is by block: a hook at each block's start counts it, Capstone decodes its instructions, and the end of a run
subtracts those of the last block that were not executed. An instruction counts if a CPU would retire it:

- an instruction that faults is not counted, and neither is `ud2`; `int3` and `hlt` are;
- a `rep` instruction counts once when it is over, however many iterations it made; one that is interrupted is not
  counted until it ends.

**Unbalanced returns.** A call instruction pushes its return address on a stack of `return_stack_depth` entries, a ret
pops one, and a ret is unbalanced if it goes elsewhere than the popped entry says, or finds no entry. As in a CPU's
return stack buffer, nothing else changes it: a return address that is dropped with `add rsp, 8` leaves its entry for
the next ret, a mismatch pops one entry and doesn't search, a call or return that an int3 emulates doesn't count as
one, and the oldest entry is overwritten when the stack is full. Unlike in a CPU, a popped entry is never used twice.

**The caller's part.** `begin()` and `end()` surround each `emu_start`, on every exit path. `read_code` returns the code
that ran at an address, until `invalidate()`; text isn't written by the guest itself. A hook that moves RIP after a
fault (rather than stopping) or from within a block calls `end(rip, ...)` with the RIP at which it was called, and then
`begin()`; after an int3, which ends its block, nothing is needed. A hook that starts the engine again surrounds that
with another `begin()` and `end()`. A host that puts a return address on the guest's stack and enters a function calls
`push_return()`, or its ret counts as unbalanced.

**Two exits that can't be told apart.** A block that jumps to its own start counts as not executed once more when a run
stops there without a fault: so it is for limits, code and block hooks and `until`. Stopping from an interrupt hook
after moving RIP to the start of the block that the interrupt ended breaks this rule, unless `end()` is called first.
"each" has the same for a single instruction that jumps to itself: right for code hooks that were added after the
counter, and with `engine_limits` for `emu_start(count=...)`, whose own hook comes before any other.

**Unicorn's `until`** isn't seen in the middle of a block that was translated before: `ctl_remove_cache()` there first.
"""

from collections.abc import Callable
from typing import Literal, Protocol

from unicorn.unicorn_py3.unicorn import Uc

from emu.counting.errors import CountingError

__all__ = ["CountingError", "InstructionCounter", "Method", "counter_for"]

Method = Literal["auto", "native", "portable", "each"]


class InstructionCounter(Protocol):
    """Counter of the instructions that one engine executes."""

    @property
    def method(self) -> str:
        """Counting method: "native", "portable" or "each"."""

    @property
    def instructions(self) -> int:
        """Instructions executed since the reset."""

    @property
    def unbalanced_returns(self) -> int:
        """Returns since the reset that didn't go where the return stack said."""

    def begin(self) -> None:
        """Call before each `emu_start`. Runs nest."""

    def end(self, rip: int, faulted: bool) -> None:
        """Call after each `emu_start`, with its RIP; `faulted`: a fault of the instruction there ended the run."""

    def push_return(self, return_address: int) -> None:
        """Record a call made by the host, as if a call instruction had pushed this return address."""

    def request_stop(self, wanted: bool = True) -> None:
        """End the run when the next block is entered, or cancel that. May be called from any thread.

        The block is a matter of chance; `end(rip, True)` then keeps the counts exact, whereas `uc_emu_stop` from
        another thread leaves it unknown whether the block at RIP was entered.
        """

    def invalidate(self, start: int, end: int) -> None:
        """Note that the text from `start` up to `end` (guest addresses) changed. Counts are kept."""

    def counts(self) -> dict[int, int]:
        """Executions of each executed instruction since the reset, by guest address."""

    def reset(self) -> None:
        """Zero the counts and empty the return stack. Between runs only."""

    def remove(self) -> None:
        """Remove the hook from the engine and free its resources; the counts stay readable. Between runs only."""


def counter_for(
    uc: Uc, read_code: Callable[[int, int], bytes], method: Method = "auto", *, return_stack_depth: int = 1024,
    engine_limits: bool = False,
) -> InstructionCounter:
    """A counter on an engine, which must not be running.

    `read_code(address, size)` returns bytes of code as this engine sees them. Methods: "native" counts blocks in
    machine code, "portable" counts them in Python, "each" counts every instruction in machine code, "auto" is
    "native", or "portable" if the host refuses executable memory. `return_stack_depth` is the number of entries of
    the return stack: a CPU's has 16 or 32, the default counts returns that don't match the last call.

    `engine_limits`: runs are limited by `emu_start(count=...)`; it matters to "each" only.

    Raises `CountingError` if the method isn't available, or for a depth outside of 1 to 65536.
    """
    from emu.counting.native import NativeCounter
    from emu.counting.portable import PortableCounter

    if not 0 < return_stack_depth <= 1 << 16:
        raise CountingError(None, f"return_stack_depth {return_stack_depth}: must be 1 to 65536")
    if method not in ("auto", "native", "portable", "each"):
        raise CountingError(None, f"no counting method {method!r}: auto, native, portable, each")
    if method != "portable":
        try:
            return NativeCounter(uc, read_code, method == "each", return_stack_depth, engine_limits)
        except OSError as error:
            if method != "auto":
                raise CountingError(None, f"method {method}: {error}") from error
    return PortableCounter(uc, read_code, return_stack_depth)
