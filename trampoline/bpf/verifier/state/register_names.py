"""Text of registers as in the log."""

from trampoline.bpf.verifier.state.state import FuncFrame, Reg, StackSlot
from trampoline.bpf.verifier.values import type_names
from trampoline.bpf.verifier.values.kinds import RegKind
from trampoline.bpf.verifier.values.scalar import UNKNOWN_SCALAR, ZERO, describe


def type_name(reg: Reg) -> str:
    """``rdonly_mem_or_null``: name of a register's kind and flags, without the struct."""
    name = type_names.type_name(reg.kind, reg.flags)
    return name.removesuffix("_") if reg.kind is RegKind.PTR_TO_BTF_ID and reg.maybe_null else name


def describe_reg(reg: Reg) -> str:
    """``ctx()``, ``fp-8``, ``map_value(map=counts,ks=4,vs=8)``, ``scalar(umax=255)``, ``7``."""
    if reg.kind is RegKind.SCALAR_VALUE:
        text = describe(reg.var)
        if reg.id and text.startswith("scalar("):
            inner = text[7:-1]
            text = f"scalar(id={reg.id}{f'+{reg.off}' if reg.add_const else ''}{',' if inner else ''}{inner})"
        return text
    if reg.kind is RegKind.NOT_INIT:
        return "?"
    if reg.kind is RegKind.PTR_TO_STACK and reg.var == ZERO:
        return f"fp{reg.off}" if reg.off else "fp0"
    parts = []
    if reg.id:
        parts.append(f"id={reg.id}")
    if reg.ref_obj_id:
        parts.append(f"ref_obj_id={reg.ref_obj_id}")
    if reg.map is not None:
        parts += [f"map={reg.map.name}", f"ks={reg.map.key_size}", f"vs={reg.map.value_size}"]
    if reg.kind is RegKind.PTR_TO_MEM:
        parts.append(f"sz={reg.mem_size}")
    if reg.off:
        parts.append(f"off={reg.off}")
    if reg.var not in (ZERO, UNKNOWN_SCALAR):
        parts.append(describe(reg.var)[7:-1])
    struct = reg.btf.type(reg.btf_id).name if reg.kind is RegKind.PTR_TO_BTF_ID and reg.btf and reg.btf_id else ""
    name = type_name(reg)
    if struct:
        null = "_or_null" if reg.maybe_null else ""
        name = name.removesuffix("or_null" if null else "") + struct + null
    return f"{name}({','.join(parts)})"


def describe_slot(slot: StackSlot) -> str:
    """The right side of ``-8=1``: the register, or the kind of each byte, highest address first."""
    if slot.reg is not None and slot.is_full_spill:
        return describe_reg(slot.reg)
    return "".join(kind.value for kind in reversed(slot.kinds))


def describe_frame(frame: FuncFrame, live: int = -1) -> str:
    """``R1=ctx() R10=fp0 fp-8=0``: a frame's registers and stack."""
    parts = [
        f"R{n}={describe_reg(reg)}"
        for n, reg in enumerate(frame.regs)
        if reg.kind is not RegKind.NOT_INIT and (live >> n & 1 or n == 10)
    ]
    parts += [f"fp-{8 * (index + 1)}={describe_slot(slot)}" for index, slot in sorted(frame.stack.items())]
    text = " ".join(parts)
    return f"frame{frame.number}: {text}" if frame.number else text
