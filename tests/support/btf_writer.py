"""Raw BTF written byte by byte."""

import struct

from trampoline.bpf.btf.btf import Btf, BtfKind


class Writer:
    """Raw BTF, a record a call; each gives its type id."""

    def __init__(self, order="<"):
        self.order, self.types, self.strings, self.count = order, b"", b"\0", 0

    def name(self, text):
        at = self.strings.find(b"\0" + text.encode() + b"\0") + 1 if text else 0
        if text and not at:
            at = len(self.strings)
            self.strings += text.encode() + b"\0"
        return at

    def add(self, kind, name="", third=0, vlen=0, words=(), flag=False):
        info = flag << 31 | kind << 24 | vlen
        words = (self.name(name), info, third, *words)
        self.types += struct.pack(f"{self.order}{len(words)}I", *words)
        self.count += 1
        return self.count

    def int(self, name, size, encoding=0):
        return self.add(BtfKind.INT, name, size, words=(encoding << 24 | size * 8,))

    def struct(self, name, size, *members, kind=BtfKind.STRUCT, flag=False):
        words = [word for text, type_id, offset in members for word in (self.name(text), type_id, offset)]
        return self.add(kind, name, size, len(members), words, flag)

    def proto(self, ret, *params):
        return self.add(
            BtfKind.FUNC_PROTO, "", ret, len(params), [w for text, t in params for w in (self.name(text), t)]
        )

    def func(self, name, ret, *params, linkage=0):
        return self.add(BtfKind.FUNC, name, self.proto(ret, *params), linkage)

    def header(self, version=1, flags=0, size=24, **sections):
        places = {"type_off": 0, "type_len": len(self.types), "str_off": len(self.types), "str_len": len(self.strings)}
        return struct.pack(f"{self.order}HBBI4I", 0xEB9F, version, flags, size, *(places | sections).values())

    def bytes(self, **header):
        return self.header(**header) + self.types + self.strings

    def btf(self):
        return Btf(self.bytes())
