"""Log of the moves that were made: the timeline."""

from bisect import bisect_right

from emu.threads.moves import Go, Move


class Timeline:
    """Moves in order; equal consecutive ones are one entry. ``end`` is the number of moves."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._moves: list[Move] = []
        self.end = 0

    def at(self, position: int) -> tuple[Move, int]:
        """The move made at a position before the end, and its number of repetitions from there."""
        entry = bisect_right(self._starts, position) - 1
        after = self._starts[entry + 1] if entry + 1 < len(self._starts) else self.end
        return self._moves[entry], after - position

    def before(self, position: int) -> tuple[Move, int]:
        """The move that leads to a position after the start, and the position where its entry begins."""
        entry = bisect_right(self._starts, position - 1) - 1
        return self._moves[entry], self._starts[entry]

    def add(self, position: int, move: Move, count: int) -> int | None:
        """Record moves made from a position; returns the position from which they are new, None if all were known.
        Later moves are dropped if they differ.
        """
        while count and position < self.end:
            known, times = self.at(position)
            if known != move:
                self.truncate(position)
                break
            same = min(times, count)
            position, count = position + same, count - same
        if not count:
            return None
        if not self._moves or self._moves[-1] != move or not isinstance(move, Go):
            self._starts.append(position)
            self._moves.append(move)
        self.end = position + count
        return position

    def again(self) -> None:
        """Record that the last move, a step, was made once more at the end."""
        self.end += 1

    def truncate(self, position: int) -> None:
        """Drop the moves after a position."""
        entry = bisect_right(self._starts, position - 1)
        del self._starts[entry:], self._moves[entry:]
        self.end = position
