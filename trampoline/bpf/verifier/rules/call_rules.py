"""What releases do differently with calls: which register types an argument takes, what is refused in which words."""

from dataclasses import dataclass
from types import MappingProxyType

from trampoline.bpf.helpers.protos import HelperArg
from trampoline.bpf.verifier.values.kinds import Flag, RegKind

RegType = tuple[RegKind, Flag]
"""A base type with the flags that make another type of it."""

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
_MEM_6_1: tuple[RegType, ...] = (*_KEY_VALUE, (RegKind.PTR_TO_MEM, _NONE), _RINGBUF, (RegKind.PTR_TO_BUF, _NONE))
_MEM_6_12 = (*_MEM_6_1, _TRUSTED)
_MEM_7_2 = (*_MEM_6_12, (RegKind.PTR_TO_CTX, _NONE))
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
_BY_6_1 = _COMMON | {
    HelperArg.MAP_KEY: _KEY_VALUE,
    HelperArg.MAP_VALUE: _KEY_VALUE,
    HelperArg.MEM: _MEM_6_1,
    HelperArg.LONG: _KEY_VALUE,
    HelperArg.BTF_ID: (_BTF_ID,),
    HelperArg.BTF_ID_SOCK_COMMON: (*_SOCKS, _BTF_ID),
    HelperArg.PERCPU_BTF_ID: ((RegKind.PTR_TO_BTF_ID, Flag.MEM_PERCPU),),
    HelperArg.SPIN_LOCK: (_MAP_VALUE,),
    HelperArg.KPTR: (_MAP_VALUE,),
}
_PERCPU_6_12: tuple[RegType, ...] = tuple(
    (RegKind.PTR_TO_BTF_ID, Flag.MEM_PERCPU | flag) for flag in (_NONE, Flag.MEM_RCU, Flag.PTR_TRUSTED)
)
_ALLOCATED = (RegKind.PTR_TO_BTF_ID, Flag.MEM_ALLOC)


def _newer(mem: tuple[RegType, ...]) -> dict[HelperArg, tuple[RegType, ...]]:
    return _COMMON | {
        HelperArg.MAP_KEY: mem,
        HelperArg.MAP_VALUE: mem,
        HelperArg.MEM: mem,
        HelperArg.FIXED_SIZE_MEM: mem,
        HelperArg.BTF_ID: (_BTF_ID, _TRUSTED, _RCU),
        HelperArg.BTF_ID_SOCK_COMMON: (*_SOCKS, _BTF_ID, _TRUSTED),
        HelperArg.PERCPU_BTF_ID: _PERCPU_6_12,
        HelperArg.SPIN_LOCK: (_MAP_VALUE, _ALLOCATED),
        HelperArg.KPTR: (_MAP_VALUE, _ALLOCATED),
    }


@dataclass(frozen=True, slots=True, eq=False)
class CallRules:
    """One release's calls."""

    arg_types: MappingProxyType[HelperArg, tuple[RegType, ...]]
    """Register types that an argument takes."""
    unavailable: str
    """What a program is told that may not call a helper."""
    names_context: bool
    """A helper that may sleep is refused with the place where it may not."""
    trusted: bool
    """Pointers to kernel memory are trusted or not (6.2)."""
    untrusted_leaves: bool
    """A pointer in a struct to something other than a struct is untrusted memory, not a number (6.17)."""
    any_pointer_is_number: bool
    """An argument that points to something other than a struct is a number; before, only void and integers were."""
    lsm_ranges: bool
    """LSM programs may return what their hook may (6.12)."""
    release_zero_off: bool
    """Whatever is given back has to have offset 0, with EINVAL."""
    contexts_are_memory: bool
    """A context that needs no conversion can be read as memory; later only that of syscall programs (6.18)."""
    cpu_number_bounded: bool
    """bpf_get_smp_processor_id gives a number below the count of CPUs."""
    elides_null: bool
    """An array's element with a constant index in range is there (6.14)."""
    map_owner_fault: str
    """What bpf_tail_call is refused with whose map is no prog array."""
    func_ip_kinds: str
    """Programs that bpf_get_func_ip is for, as its refusal says."""


CALL_RULES = {
    "6.1": CallRules(
        MappingProxyType(_BY_6_1),
        unavailable="unknown func {name}#{number}",
        names_context=False,
        trusted=False,
        untrusted_leaves=False,
        any_pointer_is_number=False,
        lsm_ranges=False,
        release_zero_off=False,
        contexts_are_memory=True,
        cpu_number_bounded=False,
        elides_null=False,
        map_owner_fault="kernel subsystem misconfigured verifier",
        func_ip_kinds="fentry/fexit/fmod_ret",
    ),
    "6.12": CallRules(
        MappingProxyType(_newer(_MEM_6_12)),
        unavailable="program of this type cannot use helper {name}#{number}",
        names_context=False,
        trusted=True,
        untrusted_leaves=False,
        any_pointer_is_number=False,
        lsm_ranges=True,
        release_zero_off=True,
        contexts_are_memory=True,
        cpu_number_bounded=True,
        elides_null=False,
        map_owner_fault="kernel subsystem misconfigured verifier",
        func_ip_kinds="fentry/fexit/fmod_ret",
    ),
    "7.2": CallRules(
        MappingProxyType(_newer(_MEM_7_2)),
        unavailable="program of this type cannot use helper {name}#{number}",
        names_context=True,
        trusted=True,
        untrusted_leaves=True,
        any_pointer_is_number=True,
        lsm_ranges=True,
        release_zero_off=True,
        contexts_are_memory=False,
        cpu_number_bounded=True,
        elides_null=True,
        map_owner_fault="expected prog array map for tail call",
        func_ip_kinds="fentry/fexit/fsession/fmod_ret",
    ),
}
