"""Which moves were made: the one line of time."""

from bisect import bisect_right

from emu.threads.moves import Go, Move


class Timeline:
    """Moves in order; equal ones that follow each other are one entry. ``end`` is the number of moves."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._moves: list[Move] = []
        self.end = 0

    def at(self, position: int) -> tuple[Move, int]:
        """The move that leads on from a position before the end, and how often it is made from there."""
        entry = bisect_right(self._starts, position) - 1
        after = self._starts[entry + 1] if entry + 1 < len(self._starts) else self.end
        return self._moves[entry], after - position

    def before(self, position: int) -> tuple[Move, int]:
        """The move that leads to a position behind the start, and the position where its entry begins."""
        entry = bisect_right(self._starts, position - 1) - 1
        return self._moves[entry], self._starts[entry]

    def add(self, position: int, move: Move, count: int) -> int | None:
        """Note moves made from a position; gives from where on they are new, None where all were known. Later moves
        are forgotten where they are others.
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
        """Note that the last move, a step, was made once more at the end."""
        self.end += 1

    def truncate(self, position: int) -> None:
        """Forget the moves behind a position."""
        entry = bisect_right(self._starts, position - 1)
        del self._starts[entry:], self._moves[entry:]
        self.end = position
