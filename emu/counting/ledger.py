"""Common part of all counters: runs and how they end, invalidated blocks, and the sums."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Final

from unicorn.unicorn_py3.unicorn import Uc

from emu.counting.block import Block, BlockEnd
from emu.counting.errors import CountingError

_KEPT_BY_ENGINE: Final = "_instruction_counters"


class BlockLedger(ABC):
    """Counts by block, corrected for runs that ended in the middle of one.

    Subclasses store the block counts and the return stack.
    """

    method: str
    # True if a limit stops a run before this counter's hook is called for the instruction at RIP. A BLOCK hook comes
    # before all limits, a CODE hook after Unicorn's own limit.
    _limit_comes_first = False

    def __init__(self, uc: Uc, read_code: Callable[[int, int], bytes]) -> None:
        self._uc: Uc | None = uc
        self._read_code = read_code
        # By instruction: executions in forgotten blocks, less those that blocks which ended midway did not make.
        self._settled: dict[int, int] = {}
        self._settled_sum = 0
        # For each run under way, the last block that the outer run had entered.
        self._outer: list[Block | None] = []
        self._error: BaseException | None = None
        # The engine calls into this object's memory, so it must not be collected first.
        uc.__dict__.setdefault(_KEPT_BY_ENGINE, []).append(self)

    def begin(self) -> None:
        """Call before each `emu_start`. Runs nest: one may begin within a hook of another. CountingError if removed."""
        if self._uc is None:
            raise CountingError(None, "this counter was removed")
        self._outer.append(self._last())
        self._set_last(None)

    def end(self, rip: int, faulted: bool) -> None:
        """Call after each `emu_start`, with the RIP that it left.

        Raises the error that prevented a block from being decoded during the run, and CountingError without a begin.
        """
        if not self._outer:
            raise CountingError(rip, "the end of a run that never began")
        block = self._last()
        self._set_last(self._outer.pop())
        if block is not None:
            position = block.position(rip)
            if position is not None and (faulted or not (self._limit_comes_first and block.jumps_to_itself)):
                for address in block.addresses[position:]:
                    self._settle(address, -1)
            elif block.end is BlockEnd.CALL:
                self.push_return(block.end_address)
            elif block.end is BlockEnd.RETURN:
                self._pop_return(rip)
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def invalidate(self, start: int, end: int) -> None:
        """Note that the text from `start` up to `end` (guest addresses) changed: its blocks are decoded again."""
        for block, count in self._forget(start, end):
            for address in block.addresses:
                self._settle(address, count)

    def counts(self) -> dict[int, int]:
        """Executions of each executed instruction since the reset, by guest address."""
        counts = dict(self._settled)
        known = counts.get
        for block, count in self._executed():
            for address in block.addresses:
                counts[address] = known(address, 0) + count
        return {address: count for address, count in counts.items() if count} if self._settled else counts

    @property
    def instructions(self) -> int:
        """Instructions executed since the reset."""
        return self._settled_sum + sum(count * len(block.addresses) for block, count in self._executed())

    def reset(self) -> None:
        """Zero the counts and empty the return stack. Between runs only."""
        self._only_between_runs("reset")
        self._settled.clear()
        self._settled_sum = 0
        self._zero()

    def remove(self) -> None:
        """Remove the hook from the engine and free its resources; the counts stay readable.

        Between runs only; a second call does nothing.
        """
        if self._uc is None:
            return
        self._only_between_runs("remove")
        kept = self._uc.__dict__[_KEPT_BY_ENGINE]
        for block, count in self._executed():
            for address in block.addresses:
                self._settle(address, count)
        self._detach()
        kept.remove(self)
        self._uc = None

    def _settle(self, address: int, count: int) -> None:
        self._settled[address] = self._settled.get(address, 0) + count
        self._settled_sum += count

    def _only_between_runs(self, what: str) -> None:
        if self._outer:
            raise CountingError(None, f"{what} during a run")

    @property
    @abstractmethod
    def unbalanced_returns(self) -> int:
        """Returns since the reset that didn't go where the return stack said."""

    @abstractmethod
    def push_return(self, return_address: int) -> None:
        """Record a call made by the host, as if a call instruction had pushed this return address."""

    @abstractmethod
    def request_stop(self, wanted: bool = True) -> None:
        """End the run when the next block is entered, or cancel that. May be called from any thread."""

    @abstractmethod
    def _pop_return(self, rip: int) -> None:
        """Handle a return to `rip`."""

    @abstractmethod
    def _last(self) -> Block | None:
        """The block that was entered last in this run."""

    @abstractmethod
    def _set_last(self, block: Block | None) -> None:
        """Make `block` the one that was entered last."""

    @abstractmethod
    def _executed(self) -> Iterable[tuple[Block, int]]:
        """Blocks entered since the reset, with their numbers of executions."""

    @abstractmethod
    def _forget(self, start: int, end: int) -> Iterable[tuple[Block, int]]:
        """Remove the blocks that contain a byte from `start` up to `end`; returns them with their executions."""

    @abstractmethod
    def _zero(self) -> None:
        """Reset block counts, unbalanced returns and the return stack."""

    @abstractmethod
    def _detach(self) -> None:
        """Remove the hook and free its resources."""
