"""Writes ELF objects that have code and nothing else."""

from struct import pack


def an_object(code, *, sections=1, machine=247, relocations=0, cut=0, offset=64):
    """An object whose sections of code all have this content; ``relocations``: bytes of them, of the first section."""
    table = 64 + len(code)
    rows = [bytes(64)]
    rows += [pack("<IIQQQQIIQQ", 0, 1, 6, 0, offset, len(code), 0, 0, 4, 0) for _ in range(sections)]
    rows.append(pack("<IIQQQQIIQQ", 0, 9, 0, 0, 64, relocations, 0, 1, 8, 16))
    sizes = (64, 0, 0, 64, len(rows), 0)
    header = pack("<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 1, machine, 1, 0, 0, table, 0, *sizes)
    whole = header + code + b"".join(rows)
    return whole[: len(whole) - cut]
