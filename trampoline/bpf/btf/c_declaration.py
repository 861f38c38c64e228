"""C prototypes written by users, read with pycparser (which has no type hints: its nodes are Any)."""

from collections.abc import Mapping
from errno import EINVAL
from functools import lru_cache
from typing import Any

from emu.machine.address_map import round_up
from trampoline.bpf.btf.btf import BtfKind
from trampoline.bpf.btf.func_model import FuncArg, FuncModel
from trampoline.bpf.btf.prototype_match import FuncProto, ParamType
from trampoline.bpf.errors import KernelError, PrototypeError

_PRELUDE = (
    "typedef _Bool bool; typedef signed char s8; typedef short s16; typedef int s32; typedef long long s64;"
    "typedef unsigned char u8; typedef unsigned short u16; typedef unsigned int u32; typedef unsigned long long u64;"
    "typedef unsigned char __u8; typedef unsigned short __u16; typedef unsigned int __u32;"
    "typedef unsigned long long __u64;"
    "typedef int __s32; typedef long long __s64; typedef unsigned long size_t; typedef long ssize_t;"
    "typedef long long loff_t; typedef unsigned short umode_t; typedef int pid_t; typedef unsigned int gfp_t;"
    "typedef unsigned int uid_t; typedef unsigned int dev_t;"
)
_BASE_SIZES = {"char": 1, "_Bool": 1, "short": 2, "int": 4, "long": 8, "float": 4, "double": 8, "__int128": 16}


def parse_model(declaration: str, sizes: Mapping[str, int] | None = None) -> FuncModel:
    """The model of a C declaration, ``"int vfs_read(struct file *f, char *buf, size_t n, loff_t *pos)"``.

    The kernel's integer typedefs are known; structs passed by value may be defined before the function (``"struct s {
    long a, b; }; int f(struct s);"``) or have their size, in bytes, in ``sizes`` (``{"struct sockptr": 16}``).

    Raises PrototypeError with the place of the fault; KernelError where the kernel's model would refuse
    (``btf.c:btf_distill_func_proto()``).
    """
    return _parsed(declaration, tuple((sizes or {}).items()))


@lru_cache(maxsize=1024)
def _parsed(declaration: str, sizes: tuple[tuple[str, int], ...]) -> FuncModel:
    model = CReader(dict(sizes)).read(declaration)
    model.check()
    return model


def read_types(declaration: str) -> FuncProto:
    """The types of a C declaration as a compiler writes them into BTF. Raises PrototypeError, as ``parse_model``.

    The number of members of an undefined struct is None.
    """
    return CReader({}).read_types(declaration)


class CReader:
    """Reader of one C declaration: computes sizes of its types from pycparser's tree."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        from pycparser import c_ast, c_parser

        self._sizes = dict(sizes)
        self._typedefs: dict[str, Any] = {}
        self.definitions: dict[str, Any] = {}
        """Structs and unions that the declaration defines before its function, by name."""
        self._members: dict[tuple[BtfKind, str], int] = {}
        self._ast = c_ast
        self._parser = c_parser

    def read(self, declaration: str) -> FuncModel:
        """The model of the declared function."""
        return self._model(self.function(declaration))

    def read_types(self, declaration: str) -> FuncProto:
        """The types of the declared function."""
        node = self.function(declaration)
        # This rejects everything but the prototype of a traceable function.
        self._model(node)
        params = node.type.args.params if node.type.args else ()
        args = [self._type(param.name or "", param.type) for param in params]
        if args and args[0].kind is BtfKind.VOID:
            args = []
        return FuncProto(tuple(args), self._type("", node.type.type))

    def function(self, declaration: str) -> Any:
        """The tree of the one function in a declaration. Raises PrototypeError."""
        text = declaration.strip().rstrip(";") + ";"
        prelude = _PRELUDE + "".join(
            f"typedef struct {{ char b[{size}]; }} {name};" for name, size in self._sizes.items() if " " not in name
        )
        try:
            tree = self._parser.CParser().parse(prelude + "\n" + text, "prototype")
        except self._parser.ParseError as error:
            raise PrototypeError(f"cannot read the prototype {declaration!r}: {error}") from None
        functions = []
        for node in tree.ext:
            if isinstance(node, self._ast.Typedef):
                self._sizes[node.name] = self.size(node.type)
                self._typedefs[node.name] = node.type
            elif isinstance(node, self._ast.Decl):
                if isinstance(node.type, self._ast.FuncDecl):
                    functions.append(node)
                elif isinstance(node.type, self._ast.Struct | self._ast.Union | self._ast.Enum):
                    self.size(node.type)
                    if not isinstance(node.type, self._ast.Enum):
                        self.definitions[node.type.name] = node.type
                    self._unmodified(node.type)
        if len(functions) != 1:
            raise PrototypeError(f"expected one function prototype, found {len(functions)} in {declaration!r}")
        return functions[0]

    def _model(self, node: Any) -> FuncModel:
        args = []
        for position, param in enumerate(node.type.args.params if node.type.args else ()):
            if isinstance(param, self._ast.ID):
                raise PrototypeError(f"type {param.name!r} of argument {position + 1} of {node.name} is not known")
            if isinstance(param, self._ast.EllipsisParam):
                raise KernelError(EINVAL, f"{node.name} takes variable arguments")
            size = self.size(param.type)
            if size == 0:
                if len(node.type.args.params) == 1 and param.name is None:
                    break
                raise KernelError(EINVAL, f"argument {position + 1} of {node.name} is void")
            args.append(
                FuncArg(
                    param.name or f"a{position}",
                    self._spelling(param.type),
                    size,
                    self.signed(param.type),
                    self._is_struct(param.type),
                )
            )
        if self._is_struct(node.type.type):
            raise KernelError(EINVAL, f"{node.name} returns a struct")
        return FuncModel(node.name, tuple(args), self.size(node.type.type), self.signed(node.type.type))

    def resolve(self, node: Any) -> Any:
        """The type inside pycparser's declaration nodes."""
        while isinstance(node, self._ast.TypeDecl):
            node = node.type
        return node

    def _is_struct(self, node: Any) -> bool:
        node = self.resolve(node)
        if isinstance(node, self._ast.IdentifierType):
            return node.names[-1] in self._sizes and self._sizes[node.names[-1]] > 8
        return isinstance(node, self._ast.Struct | self._ast.Union)

    def _type(self, name: str, node: Any) -> ParamType:
        kind, tag, members = self._unmodified(node)
        points_to = None
        if kind is BtfKind.PTR:
            resolved = self.behind_typedefs(node)
            if isinstance(resolved, self._ast.PtrDecl | self._ast.ArrayDecl):
                pointee, pointee_tag, _ = self._unmodified(resolved.type)
                points_to = pointee_tag if pointee in (BtfKind.STRUCT, BtfKind.UNION) else None
        return ParamType(name, self._spelling(node), kind, self.size(node), tag, members, points_to=points_to)

    def behind_typedefs(self, node: Any) -> Any:
        """A type after typedefs of this declaration."""
        node = self.resolve(node)
        while isinstance(node, self._ast.IdentifierType) and node.names[-1] in self._typedefs:
            node = self.resolve(self._typedefs[node.names[-1]])
        return node

    def _unmodified(self, node: Any) -> tuple[BtfKind, str, int | None]:
        """Kind, tag and number of members of a type after typedefs and qualifiers; records definitions."""
        ast, node = self._ast, self.behind_typedefs(node)
        if isinstance(node, ast.PtrDecl | ast.ArrayDecl | ast.FuncDecl):
            return BtfKind.PTR, "", 0
        if isinstance(node, ast.Struct | ast.Union | ast.Enum):
            kinds = {ast.Struct: BtfKind.STRUCT, ast.Union: BtfKind.UNION, ast.Enum: BtfKind.ENUM}
            key = kinds[type(node)], node.name or ""
            members = node.values and node.values.enumerators if key[0] is BtfKind.ENUM else node.decls
            if members is not None:
                self._members[key] = len(members)
            return *key, self._members.get(key)
        if node.names == ["void"]:
            return BtfKind.VOID, "", 0
        return BtfKind.FLOAT if {"float", "double"} & set(node.names) else BtfKind.INT, "", 0

    def _spelling(self, node: Any) -> str:
        if isinstance(node, self._ast.PtrDecl | self._ast.ArrayDecl):
            inner = node.type
            return "fn *" if isinstance(inner, self._ast.FuncDecl) else self._spelling(inner).rstrip() + " *"
        node = self.resolve(node)
        if isinstance(node, self._ast.IdentifierType):
            return " ".join(node.names)
        return f"{type(node).__name__.lower()} {node.name}"

    def signed(self, node: Any) -> bool:
        """True if a type is a signed integer."""
        node = self.resolve(node)
        if not isinstance(node, self._ast.IdentifierType):
            return False
        names = set(node.names)
        if names & {"unsigned", "_Bool", "bool", "size_t"} or any(n.lstrip("_").startswith("u") for n in names):
            return False
        return names <= {"char", "short", "int", "long", "signed"} or bool(
            names & {"s8", "s16", "s32", "s64", "__s32", "__s64", "ssize_t", "loff_t", "pid_t"}
        )

    def size(self, node: Any) -> int:
        """Size of a type as an argument, in bytes. Raises PrototypeError if unknown."""
        if isinstance(node, self._ast.PtrDecl):
            return 8
        if isinstance(node, self._ast.ArrayDecl):
            return 8
        node = self.resolve(node)
        if isinstance(node, self._ast.FuncDecl):
            return 8
        if isinstance(node, self._ast.Enum):
            return 4
        if isinstance(node, self._ast.Struct | self._ast.Union):
            return self._struct_size(node)
        names = node.names
        if names == ["void"]:
            return 0
        if names[-1] in self._sizes:
            return self._sizes[names[-1]]
        known = [_BASE_SIZES[n] for n in names if n in _BASE_SIZES]
        if "short" in names:
            return 2
        if known:
            return 8 if "long" in names else known[-1]
        if set(names) & {"unsigned", "signed"}:
            return 4
        raise PrototypeError(f"the size of type {' '.join(names)!r} is not known; pass it in sizes")

    def _struct_size(self, node: Any) -> int:
        tag = f"{type(node).__name__.lower()} {node.name}"
        if node.decls is None:
            if tag not in self._sizes:
                raise PrototypeError(
                    f"{tag} is passed by value and not defined: define it before the function or pass its size"
                )
            return self._sizes[tag]
        offset, align, largest = 0, 1, 0
        for member in node.decls:
            size, alignment = self.member(member.type)
            align = max(align, alignment)
            offset = round_up(offset, alignment) + size
            largest = max(largest, size)
        size = largest if isinstance(node, self._ast.Union) else offset
        size = round_up(size, align)
        self._sizes[tag] = size
        return size

    def member(self, node: Any) -> tuple[int, int]:
        """Size and alignment of a struct's member, in bytes. Raises PrototypeError if unknown."""
        if isinstance(node, self._ast.ArrayDecl):
            size, align = self.member(node.type)
            if not isinstance(node.dim, self._ast.Constant):
                raise PrototypeError("array members need a constant dimension")
            return size * int(node.dim.value, 0), align
        size = self.size(node)
        return size, min(size, 8) or 1
