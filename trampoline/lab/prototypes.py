"""Prototypes of a kernel's functions with their types, from BTF or from C declarations."""

from emu.kernel.kernel import Kernel
from trampoline.bpf.btf.btf import Btf, BtfKind
from trampoline.bpf.btf.c_declaration import read_types
from trampoline.bpf.btf.prototype_match import FuncProto, ParamType
from trampoline.bpf.errors import PrototypeError
from trampoline.lab.btf_functions import BtfFunctions
from trampoline.update.target import TraceTarget

_BTF_ID = 0x7FFFFFFF
"""Mask of the BTF id in a trampoline's key (``bpf_verifier.h:bpf_trampoline_unpack_key()``)."""


class FuncProtos:
    """Prototypes of one kernel's functions: from BTF if it has them, else from their C declarations."""

    def __init__(self, kernel: Kernel, functions: BtfFunctions | None) -> None:
        self._kernel, self._functions = kernel, functions
        self._declared: dict[str, FuncProto] = {}
        self._in_btf: dict[int, FuncProto] = {}

    def of(self, target: TraceTarget) -> FuncProto:
        """Prototype of a kernel function. PrototypeError if none is known."""
        functions, btf_id = self._functions, target.key & _BTF_ID
        if functions is not None and not target.module and btf_id in functions.positions:
            proto_id = functions.btf.type(btf_id).type_id
            if proto_id not in self._in_btf:
                self._in_btf[proto_id] = proto_in_btf(functions.btf, btf_id)
            return self._in_btf[proto_id]
        placed = self._kernel.function_at(target.address)
        if placed is None or not placed.prototype:
            raise PrototypeError(f"no prototype of {target.name} is known")
        if placed.prototype not in self._declared:
            self._declared[placed.prototype] = read_types(placed.prototype)
        return self._declared[placed.prototype]


def proto_in_btf(btf: Btf, func_id: int) -> FuncProto:
    """Prototype of the function with a BTF id. BtfError if the id is not a function's."""
    func = btf.function(func_id)
    params, ret = btf.prototype(func.proto_id)
    args = (_type_in_btf(btf, param, arg.name) for param, arg in zip(params, func.model.args, strict=True))
    return FuncProto(tuple(args), _type_in_btf(btf, ret, ""), func.proto_id)


def _type_in_btf(btf: Btf, type_id: int, name: str) -> ParamType:
    value, record, points_to = btf.value(type_id), btf.unmodified(type_id), None
    if record.kind is BtfKind.PTR:
        target = btf.unmodified(record.type_id)
        points_to = target.name if target.kind in (BtfKind.STRUCT, BtfKind.UNION) else None
    # An array's count is not part of its info, but arrays never match.
    return ParamType(name, value.type, value.kind, value.size, record.name, record.count, record.flag, points_to)
