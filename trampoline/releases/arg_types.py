"""Register types that helpers' arguments take (``compatible_reg_types``, kernel/bpf/verifier.c)."""

from collections.abc import Mapping
from types import MappingProxyType

from trampoline.bpf.helpers.protos import HelperArg
from trampoline.bpf.verifier.rules.call_rules import RegType
from trampoline.bpf.verifier.values.kinds import Flag, RegKind

_NONE = Flag.NONE
_STACK = (RegKind.PTR_TO_STACK, _NONE)
_MAP_VALUE = (RegKind.PTR_TO_MAP_VALUE, _NONE)
_BTF_ID = (RegKind.PTR_TO_BTF_ID, _NONE)
_TRUSTED = (RegKind.PTR_TO_BTF_ID, Flag.PTR_TRUSTED)
_RCU = (RegKind.PTR_TO_BTF_ID, Flag.MEM_RCU)
_RINGBUF = (RegKind.PTR_TO_MEM, Flag.MEM_RINGBUF)
_KEY_VALUE: tuple[RegType, ...] = (
    _STACK,
    (RegKind.PTR_TO_PACKET, _NONE),
    (RegKind.PTR_TO_PACKET_META, _NONE),
    (RegKind.PTR_TO_MAP_KEY, _NONE),
    _MAP_VALUE,
)
_MEM: tuple[RegType, ...] = (*_KEY_VALUE, (RegKind.PTR_TO_MEM, _NONE), _RINGBUF, (RegKind.PTR_TO_BUF, _NONE))
_SOCKS: tuple[RegType, ...] = tuple(
    (kind, _NONE)
    for kind in (RegKind.PTR_TO_SOCK_COMMON, RegKind.PTR_TO_SOCKET, RegKind.PTR_TO_TCP_SOCK, RegKind.PTR_TO_XDP_SOCK)
)
_SCALAR: tuple[RegType, ...] = ((RegKind.SCALAR_VALUE, _NONE),)

_COMMON: dict[HelperArg, tuple[RegType, ...]] = {
    HelperArg.CONST_SIZE: _SCALAR,
    HelperArg.CONST_SIZE_OR_ZERO: _SCALAR,
    HelperArg.CONST_ALLOC_SIZE_OR_ZERO: _SCALAR,
    HelperArg.CONST_MAP_PTR: ((RegKind.CONST_PTR_TO_MAP, _NONE),),
    HelperArg.CTX: ((RegKind.PTR_TO_CTX, _NONE),),
    HelperArg.SOCK_COMMON: _SOCKS,
    HelperArg.RINGBUF_MEM: (_RINGBUF,),
    HelperArg.FUNC: ((RegKind.PTR_TO_FUNC, _NONE),),
    HelperArg.STACK: (_STACK,),
    HelperArg.CONST_STR: (_MAP_VALUE,),
    HelperArg.TIMER: (_MAP_VALUE,),
    HelperArg.DYNPTR: (_STACK, (RegKind.CONST_PTR_TO_DYNPTR, _NONE)),
}
_UNTRUSTED = _COMMON | {
    HelperArg.MAP_KEY: _KEY_VALUE,
    HelperArg.MAP_VALUE: _KEY_VALUE,
    HelperArg.MEM: _MEM,
    HelperArg.LONG: _KEY_VALUE,
    HelperArg.BTF_ID: (_BTF_ID,),
    HelperArg.BTF_ID_SOCK_COMMON: (*_SOCKS, _BTF_ID),
    HelperArg.PERCPU_BTF_ID: ((RegKind.PTR_TO_BTF_ID, Flag.MEM_PERCPU),),
    HelperArg.SPIN_LOCK: (_MAP_VALUE,),
    HelperArg.KPTR: (_MAP_VALUE,),
}
_PERCPU: tuple[RegType, ...] = tuple(
    (RegKind.PTR_TO_BTF_ID, Flag.MEM_PERCPU | flag) for flag in (_NONE, Flag.MEM_RCU, Flag.PTR_TRUSTED)
)
_ALLOCATED = (RegKind.PTR_TO_BTF_ID, Flag.MEM_ALLOC)


UNTRUSTED: Mapping[HelperArg, tuple[RegType, ...]] = MappingProxyType(_UNTRUSTED)
"""Without trusted pointers (before 6.2)."""


def trusted(*more: RegType) -> Mapping[HelperArg, tuple[RegType, ...]]:
    """With trusted pointers; ``more`` are further types that are memory."""
    mem = (*_MEM, _TRUSTED, *more)
    types = _COMMON | {
        HelperArg.MAP_KEY: mem,
        HelperArg.MAP_VALUE: mem,
        HelperArg.MEM: mem,
        HelperArg.FIXED_SIZE_MEM: mem,
        HelperArg.BTF_ID: (_BTF_ID, _TRUSTED, _RCU),
        HelperArg.BTF_ID_SOCK_COMMON: (*_SOCKS, _BTF_ID, _TRUSTED),
        HelperArg.PERCPU_BTF_ID: _PERCPU,
        HelperArg.SPIN_LOCK: (_MAP_VALUE, _ALLOCATED),
        HelperArg.KPTR: (_MAP_VALUE, _ALLOCATED),
    }
    return MappingProxyType(types)
