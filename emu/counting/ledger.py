"""What every counter does alike: runs and how they end, blocks forgotten, and the sums."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Final

from unicorn.unicorn_py3.unicorn import Uc

from emu.counting.block import Block, BlockEnd
from emu.counting.errors import CountingError

_KEPT_BY_ENGINE: Final = "_instruction_counters"


class BlockLedger(ABC):
    """Counts by block, corrected where a run ended midway.

    A kind of counter says where the block counts and the return stack are kept.
    """

    method: str
    # Whether a limit stops a run before this counter's hook is called for the instruction at RIP. A BLOCK hook comes
    # before all that limits, a CODE hook after Unicorn's own limit.
    _limit_comes_first = False

    def __init__(self, uc: Uc, read_code: Callable[[int, int], bytes]) -> None:
        self._uc: Uc | None = uc
        self._read_code = read_code
        # By instruction: what forgotten blocks executed, less what blocks that ended midway didn't.
        self._settled: dict[int, int] = {}
        self._settled_sum = 0
        # For each run under way, the block that the run around it had entered last.
        self._outer: list[Block | None] = []
        self._error: BaseException | None = None
        # The engine calls into this object's memory, so that it must not be collected first.
        uc.__dict__.setdefault(_KEPT_BY_ENGINE, []).append(self)

    def begin(self) -> None:
        """Before each `emu_start`. Runs nest: one may begin within a hook of another."""
        if self._uc is None:
            raise CountingError(None, "this counter was removed")
        self._outer.append(self._last())
        self._set_last(None)

    def end(self, rip: int, faulted: bool) -> None:
        """After each `emu_start`, with the RIP that it left.

        Raises what kept a block from being decoded during the run.
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
        """The text from `start` up to `end` (guest addresses) changed: its blocks are decoded anew when they run."""
        for block, count in self._forget(start, end):
            for address in block.addresses:
                self._settle(address, count)

    def counts(self) -> dict[int, int]:
        """How often each instruction was executed since the reset, by guest address; only those that were."""
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
        """Zeroes the counts and empties the return stack. Between runs only."""
        self._only_between_runs("reset")
        self._settled.clear()
        self._settled_sum = 0
        self._zero()

    def remove(self) -> None:
        """Takes the hook out of the engine and frees what it used; the counts stay readable.

        Between runs only; a second time does nothing.
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
        """A call that the host made: as if a call instruction had pushed this return address."""

    @abstractmethod
    def request_stop(self, wanted: bool = True) -> None:
        """From any thread: end the run when the next block is entered, or do not."""

    @abstractmethod
    def _pop_return(self, rip: int) -> None:
        """A return went to `rip`."""

    @abstractmethod
    def _last(self) -> Block | None:
        """The block that was entered last in this run."""

    @abstractmethod
    def _set_last(self, block: Block | None) -> None:
        """Makes `block` the one that was entered last."""

    @abstractmethod
    def _executed(self) -> Iterable[tuple[Block, int]]:
        """Blocks entered since the reset, and how often."""

    @abstractmethod
    def _forget(self, start: int, end: int) -> Iterable[tuple[Block, int]]:
        """Takes out the blocks that hold a byte from `start` up to `end`, with how often they were entered."""

    @abstractmethod
    def _zero(self) -> None:
        """Block counts, unbalanced returns and the return stack as at the beginning."""

    @abstractmethod
    def _detach(self) -> None:
        """Takes the hook out and frees what it used."""
