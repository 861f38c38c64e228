"""Functions missing from a kernel's BTF, added from C declarations: those of modules, and a lab's own."""

import struct
from collections.abc import Iterable
from typing import Any

from emu.machine.address_map import round_up
from trampoline.bpf.btf.btf import Btf, BtfKind
from trampoline.bpf.btf.c_declaration import CReader
from trampoline.bpf.btf.writer import RECORD_SIZE, BtfWriter

_BOOL = 4
_SIGNED = 1


def with_declarations(btf: Btf, declarations: Iterable[str]) -> Btf:
    """A BTF with declared functions appended. Raises PrototypeError for a declaration that cannot be read."""
    writer = _Declarations(btf)
    for declaration in declarations:
        writer.declare(declaration)
    return btf.with_types(bytes(writer.types), bytes(writer.strings))


class _Declarations(BtfWriter):
    """Writer of records that follow those of a base BTF; each type is written once."""

    def __init__(self, base: Btf) -> None:
        super().__init__(strings=bytearray(), count=len(base) - 1)
        self._base = base
        self._known: dict[str, int] = {}

    def declare(self, declaration: str) -> None:
        """Add a function, with the types that its declaration defines."""
        from pycparser import c_ast

        self._ast: Any = c_ast
        # This rejects everything but the prototype of a traceable function.
        CReader({}).read(declaration)
        self._reader = CReader({})
        node = self._reader.function(declaration)
        params = [(param.name or "", param.type) for param in (node.type.args.params if node.type.args else ())]
        if len(params) == 1 and not params[0][0] and self._is_void(params[0][1]):
            params = []
        # An array parameter is a pointer.
        words = [word for name, kind in params for word in (self._name(name), self._type(kind, passed=True))]
        proto = self.add(BtfKind.FUNC_PROTO, third=self._type(node.type.type), vlen=len(params), words=tuple(words))
        self.function(node.name, proto, is_global=False)

    def _is_void(self, node: Any) -> bool:
        node = self._reader.resolve(node)
        return isinstance(node, self._ast.IdentifierType) and node.names == ["void"]

    def _type(self, node: Any, *, passed: bool = False) -> int:
        """Type id of a C type, 0 for void."""
        ast = self._ast
        if isinstance(node, ast.PtrDecl) or (passed and isinstance(node, ast.ArrayDecl)):
            target = node.type
            return self.pointer(0 if isinstance(target, ast.FuncDecl) else self._type(target))
        if isinstance(node, ast.ArrayDecl):
            element = self._type(node.type)
            index = self._once("unsigned int", lambda: self._integer("unsigned int", 4, 0))
            return self.add(BtfKind.ARRAY, words=(element, index, int(node.dim.value, 0)))
        node = self._reader.resolve(node)
        if isinstance(node, ast.Struct | ast.Union):
            return self._struct(node)
        if isinstance(node, ast.Enum):
            return self._once(f"enum {node.name}", lambda: self.add(BtfKind.ENUM, node.name or "", 4))
        if node.names == ["void"]:
            return 0
        target = self._reader.behind_typedefs(node)
        if target is not node:
            name = node.names[-1]
            return self._once(name, lambda: self.add(BtfKind.TYPEDEF, name, self._type(target)))
        name = " ".join(node.names)
        encoding = _BOOL if "_Bool" in node.names else _SIGNED if self._reader.signed(node) else 0
        return self._once(name, lambda: self._integer(name, self._reader.size(node), encoding))

    def _integer(self, name: str, size: int, encoding: int) -> int:
        return self.add(BtfKind.INT, name, size, words=(encoding << 24 | 8 * size,))

    def _once(self, key: str, make: Any) -> int:
        if key not in self._known:
            self._known[key] = make()
        return self._known[key]

    def _struct(self, node: Any) -> int:
        kind = BtfKind.UNION if isinstance(node, self._ast.Union) else BtfKind.STRUCT
        key = f"{kind.name} {node.name}"
        if key in self._known:
            return self._known[key]
        if node.decls is None:
            node = self._reader.definitions.get(node.name, node)
        if node.decls is None:
            known = self._base.struct_named(node.name) if kind is BtfKind.STRUCT else 0
            self._known[key] = known or self.add(BtfKind.FWD, node.name)
            return self._known[key]
        # A member may point to the struct: reserve its id before the members' types are written.
        at, count = len(self.types), len(node.decls)
        self._known[key] = self.add(kind, node.name or "", self._reader.size(node), count, (0,) * 3 * count)
        words: list[int] = []
        offset = 0
        for member in node.decls:
            size, alignment = self._reader.member(member.type)
            offset = round_up(offset, alignment)
            place = 0 if kind is BtfKind.UNION else 8 * offset
            words += [self._name(member.name), self._type(member.type), place]
            offset += size
        struct.pack_into(f"<{len(words)}I", self.types, at + RECORD_SIZE, *words)
        return self._known[key]

    def _name(self, text: str) -> int:
        return super()._name(text) + self._base.strings_size if text else 0
