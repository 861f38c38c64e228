"""Writer of small BTF: numbers, pointers, structs without members, functions."""

import struct
from dataclasses import dataclass, field

from trampoline.bpf.btf.btf import Btf, BtfKind

_RECORD = struct.Struct("<III")
RECORD_SIZE = _RECORD.size
"""Size of a record in bytes, without the data of its kind after it."""


@dataclass(slots=True)
class BtfWriter:
    """Builder of raw BTF; each method adds one type and returns its type id."""

    types: bytearray = field(default_factory=bytearray)
    strings: bytearray = field(default_factory=lambda: bytearray(b"\0"))
    count: int = 0

    def add(self, kind: BtfKind, name: str = "", third: int = 0, vlen: int = 0, words: tuple[int, ...] = ()) -> int:
        """Add a record: name, kind and vlen, size or type, and the words after it."""
        self.types += _RECORD.pack(self._name(name), kind << 24 | vlen, third)
        self.types += struct.pack(f"<{len(words)}I", *words)
        self.count += 1
        return self.count

    def number(self, name: str = "int", size: int = 4) -> int:
        """Add a signed integer of ``size`` bytes."""
        return self.add(BtfKind.INT, name, size, words=(1 << 24 | size * 8,))

    def pointer(self, to: int) -> int:
        """Add a pointer to a type, 0 for void."""
        return self.add(BtfKind.PTR, third=to)

    def prototype(self, ret: int, *params: int) -> int:
        """Add a prototype with unnamed parameters."""
        words = tuple(word for param in params for word in (0, param))
        return self.add(BtfKind.FUNC_PROTO, third=ret, vlen=len(params), words=words)

    def function(self, name: str, prototype: int, *, is_global: bool) -> int:
        """Add a function."""
        return self.add(BtfKind.FUNC, name, prototype, int(is_global))

    def btf(self) -> Btf:
        """The BTF built so far."""
        header = struct.pack("<HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(self.types), len(self.types), len(self.strings))
        return Btf(header + bytes(self.types) + bytes(self.strings))

    def _name(self, text: str) -> int:
        if not text:
            return 0
        at = len(self.strings)
        self.strings += text.encode() + b"\0"
        return at


def without_functions() -> Btf:
    """The smallest BTF that a kernel can have: only ``int``."""
    writer = BtfWriter()
    writer.number()
    return writer.btf()
