"""CO-RE: adapts instructions compiled against one kernel's types to another kernel (libbpf's relo_core.c).

An instruction whose type or field the kernel lacks becomes a call that the verifier rejects if it is reachable: a
program may check the existence of a field first.
"""

from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

from trampoline.bpf.btf.btf import Btf, BtfKind
from trampoline.bpf.btf.ext import CoreKind, CoreRecord
from trampoline.bpf.errors import BtfError, ObjectError
from trampoline.bpf.isa.insn import CALL, LD_IMM64, Alu, Cls, Insn, Mode, Size
from trampoline.bpf.objects.core_access import ENUM_VALUES, CoreAccess, kernel_access, local_access
from trampoline.bpf.objects.core_types import is_enum, kinds_agree
from trampoline.bpf.objects.externs import essential_name

POISON = 0xBAD2310
"""Helper number in the call that replaces a poisoned instruction."""

_EXISTENCE = frozenset({CoreKind.FIELD_EXISTS, CoreKind.TYPE_EXISTS, CoreKind.TYPE_MATCHES, CoreKind.ENUMVAL_EXISTS})
_SIZES = {1: Size.B, 2: Size.H, 4: Size.W, 8: Size.DW}
_MAX_CANDIDATES = 4096
_MAX_OFFSET = 0x7FFF


@dataclass(frozen=True, slots=True)
class _Value:
    """The value of a relocation's operand in one BTF. ``type_id`` and ``size`` are set for loads of a whole field."""

    number: int
    checked: bool = True
    """True if the instruction must contain the object's value; a bit-field's offset may differ."""
    type_id: int = 0
    size: int = 0


_Names = dict[str, list[tuple[int, BtfKind]]]
_KNOWN: "WeakKeyDictionary[Btf, _Names]" = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class KernelTypes:
    """A kernel's types by essential name: the name without its flavour."""

    btf: Btf
    _by_name: _Names

    def candidates(self, name: str, kind: BtfKind) -> list[int]:
        """Type ids with a name and a kind, ascending."""
        return [type_id for type_id, other in self._by_name.get(name, ()) if kinds_agree(other, kind)]


def kernel_types(btf: Btf) -> KernelTypes:
    """Index of a BTF's types, built once. Raises BtfError for damaged names."""
    names = _KNOWN.get(btf)
    if names is None:
        names = {}
        for type_id, kind, name in btf.names():
            names.setdefault(essential_name(name) if "___" in name else name, []).append((type_id, kind))
        _KNOWN[btf] = names
    return KernelTypes(btf, names)


def relocate(insn: Insn, record: CoreRecord, local: Btf, kernel: KernelTypes | None) -> tuple[Insn, ...]:
    """The instruction adapted to a kernel, with the same number of slots.

    Raises ObjectError for a damaged relocation, an instruction that does not match it, an ambiguous match among the
    kernel's types, and for ``kernel`` None if the relocation needs a kernel.
    """
    try:
        access = local_access(local, record)
        ours = _value(access, record)
        if record.kind is CoreKind.TYPE_ID_LOCAL:
            return _patched(insn, record, ours, replace(ours, number=record.type_id))
        if kernel is None:
            raise ObjectError(f"{_describe(local, record)} needs the BTF of a kernel")
        theirs = _kernel_value(access, record, local, kernel)
    except BtfError as error:
        raise ObjectError(f"{record.kind.name} at slot {record.slot}: {error}") from None
    if theirs is None or not _can_adapt(insn, ours, theirs, local, kernel.btf):
        return _poisoned(insn)
    return _patched(insn, record, ours, theirs)


def _can_adapt(insn: Insn, ours: _Value, theirs: _Value, local: Btf, kernel: Btf) -> bool:
    """True if a load or store can use the kernel's width without a sign extension."""
    if ours.size == theirs.size or insn.cls not in (Cls.LDX, Cls.ST, Cls.STX):
        return True
    types = local.unmodified(ours.type_id), kernel.unmodified(theirs.type_id)
    if types[0].kind is not types[1].kind:
        return False
    if types[0].kind is BtfKind.INT:
        return not local.int_encoding(types[0].id)[0] and not kernel.int_encoding(types[1].id)[0]
    return types[0].kind is BtfKind.PTR


def _kernel_value(access: CoreAccess, record: CoreRecord, local: Btf, kernel: KernelTypes) -> _Value | None:
    """The operand's value in the kernel; None if the kernel has no match."""
    root = local.type(record.type_id)
    if not root.name:
        raise ObjectError(f"{_describe(local, record)}: a type without a name cannot be found in a kernel")
    candidates = kernel.candidates(essential_name(root.name), root.kind)
    if len(candidates) > _MAX_CANDIDATES:
        raise ObjectError(f"{_describe(local, record)}: {len(candidates)} candidates")
    found: tuple[CoreAccess, _Value] | None = None
    for candidate in candidates:
        theirs = kernel_access(access, kernel.btf, candidate, record.kind)
        if theirs is None:
            continue
        value = _value(theirs, record)
        if found is None:
            found = theirs, value
        elif (found[0].bit_offset, found[1].number) != (theirs.bit_offset, value.number):
            reason = f"type ids {found[0].root} and {theirs.root} of the kernel differ: {found[1].number} and"
            raise ObjectError(f"{_describe(local, record)}: {reason} {value.number}")
    if found is not None:
        return found[1]
    return _Value(0) if record.kind in _EXISTENCE or record.kind is CoreKind.TYPE_ID_TARGET else None


def _value(access: CoreAccess, record: CoreRecord) -> _Value:
    kind, btf = record.kind, access.btf
    if kind in _EXISTENCE:
        return _Value(1)
    if kind in (CoreKind.TYPE_ID_LOCAL, CoreKind.TYPE_ID_TARGET):
        # The object's type ids may have been renumbered after compilation.
        return _Value(access.root, checked=False)
    if kind is CoreKind.TYPE_SIZE:
        return _Value(btf.value(access.root).size)
    if kind in ENUM_VALUES:
        step = access.steps[-1]
        return _Value(btf.enumerators(step.type_id)[step.index][1])
    return _field(access, record)


def _field(access: CoreAccess, record: CoreRecord) -> _Value:
    """The requested property of a field: offset, size, signedness, or a bit-field's shifts."""
    btf, kind, step = access.btf, record.kind, access.steps[-1]
    if step.name is None:
        size = btf.value(step.type_id).size
        if kind is CoreKind.FIELD_BYTE_OFFSET:
            return _Value(access.bit_offset // 8, type_id=step.type_id, size=size)
        if kind is CoreKind.FIELD_BYTE_SIZE:
            return _Value(size)
        raise ObjectError(f"the CO-RE relocation at slot {record.slot} is {kind.name} of an element")
    member = btf.members(step.type_id)[step.index]
    resolved = btf.unmodified(member.type_id)
    bits, size = member.bit_size, btf.value(member.type_id).size
    at = access.bit_offset // 8
    if bits:
        size, at = _bitfield_load(access.bit_offset, bits, resolved.size, record)
    match kind:
        case CoreKind.FIELD_BYTE_OFFSET:
            return _Value(at, checked=not bits, type_id=0 if bits else member.type_id, size=0 if bits else size)
        case CoreKind.FIELD_BYTE_SIZE:
            return _Value(size, checked=not bits)
        case CoreKind.FIELD_SIGNED:
            signed = btf.int_encoding(resolved.id)[0] if resolved.kind is BtfKind.INT else False
            return _Value(int(signed or (is_enum(resolved.kind) and resolved.flag)))
        case CoreKind.FIELD_LSHIFT_U64:
            end = access.bit_offset + (bits or size * 8) - at * 8
            return _Value((64 - end) % (1 << 32), checked=not bits)
        case _:
            return _Value((64 - (bits or size * 8)) % (1 << 32))


def _bitfield_load(bit_offset: int, bits: int, size: int, record: CoreRecord) -> tuple[int, int]:
    """Size and offset, in bytes, of the narrowest aligned load that contains a bit-field."""
    while size in _SIZES:
        at = bit_offset // 8 // size * size
        if bit_offset + bits <= (at + size) * 8:
            return size, at
        size *= 2
    raise ObjectError(f"the CO-RE relocation at slot {record.slot} is of a bit-field that no load can read")


def _patched(insn: Insn, record: CoreRecord, ours: _Value, theirs: _Value) -> tuple[Insn, ...]:
    old, new = ours.number, theirs.number
    checked = ours.checked and theirs.checked
    if insn.code == LD_IMM64:
        if insn.src or (checked and insn.imm != old % (1 << 64)):
            raise _unexpected(insn, record, insn.imm, old)
        return (replace(insn, imm=new % (1 << 64)),)
    if insn.cls in (Cls.ALU, Cls.ALU64) and not insn.from_register and insn.op not in (Alu.NEG, Alu.END):
        if checked and insn.imm % (1 << 32) != old % (1 << 32):
            raise _unexpected(insn, record, insn.imm, old)
        value = new % (1 << 32)
        return (replace(insn, imm=value - (value >> 31 << 32)),)
    if insn.cls in (Cls.LDX, Cls.ST, Cls.STX) and insn.mode in (Mode.MEM, Mode.MEMSX):
        if checked and insn.off != old:
            raise _unexpected(insn, record, insn.off, old)
        if new > _MAX_OFFSET:
            raise ObjectError(f"the field at slot {record.slot} is {new} bytes from its beginning in this kernel")
        return _with_width(replace(insn, off=new), record, ours, theirs)
    raise ObjectError(f"the CO-RE relocation at slot {record.slot} is on instruction 0x{insn.code:02x}")


def _with_width(insn: Insn, record: CoreRecord, ours: _Value, theirs: _Value) -> tuple[Insn, ...]:
    if ours.size == theirs.size:
        return (insn,)
    if insn.size.bits // 8 != ours.size or theirs.size not in _SIZES:
        reason = f"a load of {insn.size.bits // 8} bytes of a field of {ours.size}, {theirs.size} in this kernel"
        raise ObjectError(f"the CO-RE relocation at slot {record.slot}: {reason}")
    return (replace(insn, code=insn.code & ~Size.DW | _SIZES[theirs.size]),)


def _poisoned(insn: Insn) -> tuple[Insn, ...]:
    return (Insn(CALL, imm=POISON),) * insn.slots


def _unexpected(insn: Insn, record: CoreRecord, found: int, expected: int) -> ObjectError:
    reason = f"instruction 0x{insn.code:02x} has {found}, where {record.kind.name} is {expected}"
    return ObjectError(f"the CO-RE relocation at slot {record.slot}: {reason}")


def is_poisoned(insns: tuple[Insn, ...]) -> bool:
    """True if an instruction's type or field does not exist in the kernel."""
    return insns[0] == Insn(CALL, imm=POISON)


def describe(btf: Btf, record: CoreRecord) -> str:
    """Text of a record: kind, type, and the member indices of its path."""
    return f"{record.kind.name} of {btf.value(record.type_id).type} ({record.access})"


def _describe(btf: Btf, record: CoreRecord) -> str:
    return f"{describe(btf, record)} at slot {record.slot}"
