"""The hash of hash maps' keys (include/linux/jhash.h), for Python and for the guest code in ``helpers/runtime``."""

from struct import unpack_from

GOLDEN = 0xDEADBEEF
"""JHASH_INITVAL."""
_M = 0xFFFFFFFF

MIX = (("a", "c", 4, "b"), ("b", "a", 6, "c"), ("c", "b", 8, "a"), ("a", "c", 16, "b"), ("b", "a", 19, "c"),
       ("c", "b", 4, "a"))  # fmt: skip
"""x -= y; x ^= rol(y, n); y += z, for each (x, y, n, z)."""
FINAL = (("c", "b", 14), ("a", "c", 11), ("b", "a", 25), ("c", "b", 16), ("a", "c", 4), ("b", "a", 14), ("c", "b", 24))
"""x ^= y; x -= rol(y, n), for each (x, y, n)."""


def _rol(value: int, count: int) -> int:
    return (value << count | value >> 32 - count) & _M


def jhash(key: bytes, seed: int) -> int:
    """The 32-bit hash of bytes; for whole words it equals jhash2()."""
    start = (GOLDEN + len(key) + seed) & _M
    state = {"a": start, "b": start, "c": start}
    at = 0
    while len(key) - at > 12:
        for name, word in zip("abc", unpack_from("<3I", key, at), strict=True):
            state[name] = state[name] + word & _M
        for x, y, count, z in MIX:
            state[x] = (state[x] - state[y] & _M) ^ _rol(state[y], count)
            state[y] = state[y] + state[z] & _M
        at += 12
    if at == len(key):
        return state["c"]
    for name, word in zip("abc", unpack_from("<3I", key[at:].ljust(12, b"\0")), strict=True):
        state[name] = state[name] + word & _M
    for x, y, count in FINAL:
        state[x] = (state[x] ^ state[y]) - _rol(state[y], count) & _M
    return state["c"]
