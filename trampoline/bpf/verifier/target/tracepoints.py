"""Tracepoints of a kernel from its BTF: their arguments and the layout of their events."""

from functools import lru_cache

from trampoline.bpf.btf.btf import Btf, BtfKind
from trampoline.bpf.verifier.target.check_attach_target import TRACE_PREFIX

EVENT_PREFIX = "trace_event_raw_"
"""Prefix of the structs of trace events' records."""


@lru_cache(maxsize=8)
def arguments(btf: Btf) -> dict[str, int]:
    """Number of arguments of each tracepoint (``bpf_raw_event_map.num_args``), from the typedefs ``btf_trace_*``."""
    found = {}
    for type_id in btf.of_kind(BtfKind.TYPEDEF):
        if (name := btf.type(type_id).name).startswith(TRACE_PREFIX):
            proto = btf.type(btf.type(btf.type(type_id).type_id).type_id)
            # The first parameter is the probe's own data.
            found[name.removeprefix(TRACE_PREFIX)] = max(0, proto.count - 1)
    return found


def event_size(btf: Btf, name: str) -> int | None:
    """End of the last field of an event's record in bytes (``trace_event_get_offsets``); None if unknown.

    Events of a class share its struct, and BTF does not record an event's class.
    """
    type_id = btf.struct_named(EVENT_PREFIX + name)
    fields = [member for member in btf.members(type_id) if member.name != "__data"] if type_id else []
    if not fields:
        return None
    return fields[-1].bit_offset // 8 + btf.value(fields[-1].type_id).size
