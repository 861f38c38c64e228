"""Arguments that must be constant at verification: text in read-only maps, formats, keys on the stack."""

import re
from errno import EINVAL

from trampoline.bpf.program import MapSpec
from trampoline.bpf.uapi import MapType
from trampoline.bpf.verifier.access.value_regions import check_map_access
from trampoline.bpf.verifier.state.env import Env
from trampoline.bpf.verifier.values.kinds import RegKind, SlotKind

_ELIDING = (MapType.ARRAY, MapType.PERCPU_ARRAY)
_RDONLY_PROG = 1 << 7
# Conversions accepted by bpf_bprintf_prepare: number with flags and width, string, character, forms of pointers.
_SPEC = re.compile(rb"%(?:%|[0 +-]*[0-9]*(?:p[ku]s|p(?:[Bsbi][46]?|[KxIi][46])?|[sc]|(?:ll?)?[idxXu]))", re.ASCII)


def constant_key(env: Env, regno: int, spec: MapSpec) -> int | None:
    """The constant key of an array on the stack (``get_constant_map_key``, since 6.14); None if unknown."""
    if not env.kernel.rules.calls.elides_null or spec.type not in _ELIDING:
        return None
    reg = env.reg(regno)
    if reg.kind is not RegKind.PTR_TO_STACK or not reg.var.is_const:
        return None
    off = reg.off + reg.var.signed
    slot = env.state.frames[reg.frame].stack.get((-off - 1) // 8)
    if slot is None:
        return None
    kinds = slot.kinds[off % 8 :]
    if _run(kinds, SlotKind.ZERO) >= spec.key_size:
        return 0
    held = slot.reg
    if held is None or not held.is_scalar or not slot.is_spilled_reg or _run(kinds, SlotKind.SPILL) != spec.key_size:
        return None
    return held.var.value if held.var.is_const else None


def _run(kinds: tuple[SlotKind, ...], kind: SlotKind) -> int:
    return next((n for n, one in enumerate(kinds) if one is not kind), len(kinds))


def check_const_str(env: Env, regno: int) -> bytes:
    """``check_reg_const_str``: the register points to a string in a frozen map; returns it."""
    reg = env.reg(regno)
    spec = reg.map
    assert spec is not None
    if not (spec.readonly and spec.flags & _RDONLY_PROG):
        env.denied(f"R{regno} does not point to a readonly map'")
    if not reg.var.is_const:
        env.denied(f"R{regno} is not a constant address'")
    if spec.type != MapType.ARRAY or spec.max_entries != 1:
        env.denied("no direct value access support for this map type")
    check_map_access(env, regno, reg.off, spec.value_size - reg.off)
    text = spec.initial.ljust(spec.value_size, b"\0")[reg.off + reg.var.signed :]
    if b"\0" not in text:
        env.invalid("string is not zero-terminated")
    return text.partition(b"\0")[0]


def check_format(env: Env) -> None:
    """``check_bpf_snprintf_call``: the format in R3 matches the number of values in R5."""
    size = env.reg(5).var
    if not size.is_const or size.value % 8:
        env.refuse(EINVAL, "")
    text = check_const_str(env, 3)
    specs = [spec for spec in _SPEC.findall(text) if spec != b"%%"]
    rest = _SPEC.sub(b"", text)
    printable = all(0x20 <= byte < 0x7F or byte in b"\t\n\v\f\r" for byte in rest)
    if b"%" in rest or not printable or len(specs) != size.value // 8:
        env.invalid("Invalid format string")
