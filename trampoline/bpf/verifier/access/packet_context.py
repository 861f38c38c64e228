"""``struct __sk_buff`` as socket filters see it (``sk_filter_is_valid_access``, net/core/filter.c)."""

from dataclasses import dataclass

from trampoline.bpf.verifier.access.context_field import ContextAccess, ContextField
from trampoline.bpf.verifier.state.env import Env
from trampoline.bpf.verifier.values.kinds import Flag, RegKind

_SIZE = 192
_CB, _CB_END = 48, 68
_SK, _SK_END = 168, 176
_WORD = 4


@dataclass(frozen=True, slots=True)
class _Span:
    first: int
    end: int

    def __contains__(self, off: object) -> bool:
        return isinstance(off, int) and self.first <= off < self.end


_HIDDEN = (
    _Span(72, 76),  # tc_classid
    _Span(76, 84),  # data, data_end
    _Span(88, 140),  # family to local_port
    _Span(140, 144),  # data_meta
    _Span(144, 152),  # flow_keys
    _Span(152, 160),  # tstamp
    _Span(160, 164),  # wire_len
    _Span(180, 192),  # tstamp_type, hwtstamp
)


def packet_field(env: Env, access: ContextAccess) -> ContextField | None:
    """The field of ``struct __sk_buff`` that is accessed; None if refused."""
    off, size = access.off, access.size
    if not 0 <= off < _SIZE or off % size or any(off in span for span in _HIDDEN):
        return None
    if _CB <= off < _CB_END:
        return ContextField() if off + size <= _CB_END else None
    if access.write:
        return None
    if _SK <= off < _SK_END:
        return ContextField(RegKind.PTR_TO_SOCK_COMMON, Flag.PTR_MAYBE_NULL) if off == _SK and size == 8 else None
    return ContextField() if size <= _WORD else None
