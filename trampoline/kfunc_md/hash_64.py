"""Arithmetic of the metadata hash table: ``hash_64``, growth and shrink sizes, chain lengths."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from emu.kernel.routines.ftrace import GOLDEN_RATIO_64

MIN_KFUNC_MD_ARRAY_BITS = 4
FIRST_INSTRUCTIONS = 10
"""Instructions of a look-up that ends at the first metadata of a chain, with the function's address in a register."""

_MASK = (1 << 64) - 1


def hash_64(value: int, bits: int) -> int:
    """Upper ``bits`` bits of the product with the golden ratio (``hash.h:hash_64()``)."""
    return (value * GOLDEN_RATIO_64 & _MASK) >> (64 - bits)


def grown_bits(bits: int, used: int, creates: int = 1) -> int:
    """Bits of the table after ``creates`` creations, each of which grows a table that is nine tenths full.

    The series' description says "greater"; its code compares ``used * 10 >= buckets * 9``, before each creation.
    """
    while (used + creates - 1) * 10 >= 9 << bits:
        bits += 1
    return bits


def shrunk_bits(bits: int, used: int) -> int:
    """Bits of the table after removals: ``used * 10 <= buckets * 3`` halves it, down to 16 buckets."""
    while bits > MIN_KFUNC_MD_ARRAY_BITS and used * 10 <= 3 << bits:
        bits -= 1
    return bits


def lookup_instructions(position: int) -> int:
    """Instructions of a look-up that ends at a chain's position (from 1), with the address in a register."""
    return FIRST_INSTRUCTIONS if position == 1 else FIRST_INSTRUCTIONS + 1 + 5 * (position - 1)


@dataclass(frozen=True, slots=True)
class ChainReport:
    """Distribution of a set of functions over a table that contains all of them."""

    functions: int
    bits: int
    lengths: dict[int, int]
    """Number of chains by length; length 0: empty buckets."""

    @property
    def load(self) -> float:
        """Functions per bucket."""
        return self.functions / (1 << self.bits)

    @property
    def positions(self) -> dict[int, int]:
        """Number of functions by position in their chain, from 1."""
        longest = max(self.lengths, default=0)
        return {
            position: sum(chains for length, chains in self.lengths.items() if length >= position)
            for position in range(1, longest + 1)
        }

    @property
    def mean_position(self) -> float:
        """Mean number of metadata objects that a look-up compares, over all functions."""
        return sum(position * count for position, count in self.positions.items()) / max(self.functions, 1)

    @property
    def mean_instructions(self) -> float:
        """Mean number of instructions of a look-up, over all functions."""
        cost = sum(lookup_instructions(position) * count for position, count in self.positions.items())
        return cost / max(self.functions, 1)


def chain_report(addresses: Iterable[int], bits: int | None = None) -> ChainReport:
    """Chain lengths of functions at these addresses. ``bits``: size of the table; None: the size after growth."""
    functions = sorted(set(addresses))
    if bits is None:
        bits = grown_bits(MIN_KFUNC_MD_ARRAY_BITS, 0, len(functions)) if functions else MIN_KFUNC_MD_ARRAY_BITS
    chains = Counter(hash_64(address, bits) for address in functions)
    lengths = Counter(chains.values())
    lengths[0] = (1 << bits) - len(chains)
    return ChainReport(len(functions), bits, dict(sorted(lengths.items())))
