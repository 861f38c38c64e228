"""Addresses of the code: passes over the function until its size is constant, as in the kernel's JIT.

Jumps start long and become short once their targets are near. A forward jump is measured with the addresses of the
previous pass, so sizes need not converge; from the sixteenth pass on, code that shrinks is padded with nops.
"""

from asm.encodings import NOPS
from trampoline.bpf.jit.emitted_insns import TO_EXIT, Branch, Pieces
from trampoline.bpf.jit.errors import JitError
from trampoline.bpf.jit.jumps import long_jump, long_size, short_jump
from trampoline.bpf.jit.rules import JitRules

MAX_PASSES = 20
PADDING_PASSES = MAX_PASSES - 5
_MAX_INSN_SIZE = 64
"""Assumed size of every instruction before the first pass, in bytes."""


class Layout:
    """The passes of one function. ``ends[i]``: end of slot ``i - 1``; ``ends[0]``: end of the prologue. In bytes."""

    def __init__(self, pieces: Pieces, rules: JitRules) -> None:
        self._pieces = pieces
        self._limit = rules.max_positive_jump8
        count = len(pieces.items)
        self.ends = [_MAX_INSN_SIZE * (i + 1) for i in range(count + 1)]
        self._cleanup = self.ends[-1]
        self.jumps: list[bytes] = [b""] * count

    def settle(self) -> int:
        """Run passes until the size is constant, and return it. Raises JitError if it never is."""
        size = 0
        for number in range(MAX_PASSES):
            before, size = size, self._pass(padding=number >= PADDING_PASSES)
            if size == before:
                # The pass that writes the image must reproduce the sizes.
                if self._pass(padding=number + 1 >= PADDING_PASSES) != size:
                    break
                return size
        raise JitError("sizes of jumps do not settle")

    def _pass(self, *, padding: bool) -> int:
        ends, jumps = self.ends, self.jumps
        place = ends[0] = len(self._pieces.prologue)
        for slot, piece in enumerate(self._pieces.items):
            if piece is None:
                continue  # the second slot was passed with the first
            if piece.is_exit:
                self._cleanup = place
            size = len(piece.code)
            if piece.branch is not None:
                jumps[slot] = jump = self._jump(slot, piece.branch, size, padding)
                size += len(jump)
            place += size
            last = slot + 1 if slot + 1 < len(self._pieces.items) and self._pieces.items[slot + 1] is None else slot
            ends[last + 1] = place
        return place

    def _jump(self, slot: int, branch: Branch, before: int, padding: bool) -> bytes:
        ends = self.ends
        target = self._cleanup if branch.target == TO_EXIT else ends[branch.target]
        distance = target - ends[slot + 1]
        room = ends[slot + 1] - ends[slot] - before
        if branch.condition is None:
            if branch.target == slot:
                distance = -2
            elif not distance:
                return self._nops(room, (0, 2, 5)) if padding else b""
        if -128 <= distance <= self._limit:
            nops = self._nops(room - 2, (0, long_size(branch.condition) - 2)) if padding else b""
            return nops + short_jump(branch.condition, distance)
        return long_jump(branch.condition, distance)

    @staticmethod
    def _nops(count: int, allowed: tuple[int, ...]) -> bytes:
        if count not in allowed:
            raise JitError(f"padding of {count} bytes")
        return NOPS[count] if count else b""
