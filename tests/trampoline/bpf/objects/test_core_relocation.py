"""CO-RE: one instruction, the object's types and a kernel's, all written here."""


import pytest

from btf_writer import Writer
from paths import SELFTEST_FOLDER
from trampoline.bpf.btf.btf import BtfKind
from trampoline.bpf.btf.ext import CoreKind, CoreRecord
from trampoline.bpf.btf.writer import without_functions
from trampoline.bpf.errors import BtfError, ObjectError
from trampoline.bpf.isa.insn import CALL, LD_IMM64, Insn
from trampoline.bpf.objects.bpf_object import BpfObject
from trampoline.bpf.objects.core_relocation import POISON, kernel_types, relocate
from trampoline.bpf.objects.core_types import TypeComparison

LDX_B, LDX_H, LDX_W, LDX_DW, STX_W, MOV, MOV32 = 0x71, 0x69, 0x61, 0x79, 0x63, 0xB7, 0xB4
WIDTH = {1: LDX_B, 2: LDX_H, 4: LDX_W, 8: LDX_DW}


class Types(Writer):
    """BTF with the integers that the structs here are made of."""

    def __init__(self):
        super().__init__()
        self.u8, self.u16, self.u32, self.u64 = (self.int(f"u{8 * size}", size) for size in (1, 2, 4, 8))
        self.s32, self.s64 = self.int("int", 4, 1), self.int("long", 8, 1)
        self.pointer = self.add(BtfKind.PTR)

    def array(self, of, count):
        return self.add(BtfKind.ARRAY, words=(of, self.u32, count))

    def enum(self, name, *values, kind=BtfKind.ENUM):
        words = []
        for text, value in values:
            words += [self.name(text), value & 0xFFFFFFFF] + ([value >> 32] if kind is BtfKind.ENUM64 else [])
        return self.add(kind, name, 8 if kind is BtfKind.ENUM64 else 4, len(values), words)


def asked(insn, local, type_id, access, kind, kernel):
    record = CoreRecord(0, type_id, access, CoreKind(kind))
    return relocate(insn, record, local.btf(), kernel_types(kernel.btf()) if kernel is not None else None)


def offset(local, type_id, access, kernel, at, width=4):
    """Where a load of a field at byte `at` of the object's struct goes in the kernel; None: nowhere."""
    (insn,) = asked(Insn(WIDTH[width], 1, 2, at), local, type_id, access, CoreKind.FIELD_BYTE_OFFSET, kernel)
    return None if insn == Insn(CALL, imm=POISON) else (insn.off, insn.size.bits // 8)


def answer(local, type_id, access, kind, kernel, ours):
    (insn,) = asked(Insn(MOV, 1, imm=ours), local, type_id, access, kind, kernel)
    return None if insn == Insn(CALL, imm=POISON) else insn.imm


def simple(kind=BtfKind.STRUCT, name="s", field="x", of=None, at=64):
    """A struct with a field of some type at a bit."""
    types = Types()
    return types, types.struct(name, 64, (field, of(types) if of else types.u32, at), kind=kind)


def test_a_field_moves():
    local, mine = simple(at=0)
    kernel, _ = simple(at=8 * 40)
    assert offset(local, mine, "0:0", kernel, 0) == (40, 4)
    assert offset(local, mine, "1:0", kernel, 64) == (104, 4)


@pytest.mark.parametrize("flavour", ["s___old", "s___v2"])
def test_flavours_of_a_type(flavour):
    local, mine = simple(name=flavour, at=0)
    kernel, _ = simple(name="s", at=16)
    assert offset(local, mine, "0:0", kernel, 0) == (2, 4)


def test_a_field_inside_anonymous_ones():
    local, mine = simple(at=0)
    kernel = Types()
    union = kernel.struct("", 8, ("y", kernel.u8, 0), ("x", kernel.u32, 32), kind=BtfKind.UNION)
    inner = kernel.struct("", 24, ("a", kernel.u64, 0), ("", union, 128))
    kernel.struct("s", 64, ("z", kernel.u64, 0), ("", inner, 256))
    assert offset(local, mine, "0:0", kernel, 0) == (32 + 16 + 4, 4)


def test_a_field_inside_a_named_one_and_arrays():
    def build(pad):
        types = Types()
        inner = types.struct("in", 16, ("pad", types.u64, 0), ("x", types.u32, 64))
        array = types.array(inner, 5)
        return types, types.struct("s", 200, ("pad", types.u8, 0), ("list", array, 8 * pad))

    (local, mine), (kernel, _) = build(8), build(24)
    assert offset(local, mine, "0:1:3:1", kernel, 8 + 3 * 16 + 8) == (24 + 3 * 16 + 8, 4)


def test_an_element_that_the_kernels_array_does_not_have():
    local, mine = simple(of=lambda types: types.array(types.u32, 8), at=0)
    shorter, _ = simple(of=lambda types: types.array(types.u32, 2), at=0)
    assert offset(local, mine, "0:0:5", shorter, 20) is None
    # The last member of a struct may be as long as it likes.
    flexible, _ = simple(of=lambda types: types.array(types.u32, 0), at=32)
    assert offset(local, mine, "0:0:5", flexible, 20) == (24, 4)


@pytest.mark.parametrize("missing", ["name", "field", "kind", "type"])
def test_what_the_kernel_does_not_have_is_poisoned(missing):
    local, mine = simple(at=0)
    kernel, _ = simple(
        name="other" if missing == "name" else "s",
        field="y" if missing == "field" else "x",
        kind=BtfKind.UNION if missing == "kind" else BtfKind.STRUCT,
        of=(lambda types: types.pointer) if missing == "type" else None,
    )
    assert offset(local, mine, "0:0", kernel, 0) is None
    assert answer(local, mine, "0:0", CoreKind.FIELD_EXISTS, kernel, 1) == 0
    assert answer(local, mine, "0:0", CoreKind.FIELD_BYTE_SIZE, kernel, 4) is None


def test_a_poisoned_load_of_64_bits_keeps_its_slots():
    local, mine = simple(at=0)
    kernel, _ = simple(name="other")
    insns = asked(Insn(LD_IMM64, 1, imm=64), local, mine, "0", CoreKind.TYPE_SIZE, kernel)
    assert insns == (Insn(CALL, imm=POISON),) * 2


@pytest.mark.parametrize(("mine", "theirs", "width"), [(4, 8, 8), (8, 4, 4), (2, 1, 1), (4, 4, 4)])
def test_unsigned_fields_of_another_width(mine, theirs, width):
    local, struct = simple(of=lambda types: getattr(types, f"u{8 * mine}"), at=0)
    kernel, _ = simple(of=lambda types: getattr(types, f"u{8 * theirs}"), at=0)
    assert offset(local, struct, "0:0", kernel, 0, mine) == (0, width)


def test_signed_fields_of_another_width_are_poisoned():
    local, struct = simple(of=lambda types: types.s32, at=0)
    kernel, _ = simple(of=lambda types: types.s64, at=0)
    assert offset(local, struct, "0:0", kernel, 0) is None


def bits(at, size, of="u32"):
    types = Types()
    return types, types.struct("s", 64, ("x", getattr(types, of), size << 24 | at), flag=True)


@pytest.mark.parametrize(
    ("at", "size", "byte", "width"), [(0, 3, 0, 4), (37, 3, 4, 4), (30, 4, 0, 8), (64 + 60, 8, 8, 8 + 8)]
)
def test_bit_fields(at, size, byte, width):
    local, mine = bits(5, 3)
    kernel, _ = bits(at, size)

    def ask(kind, ours):
        return answer(local, mine, "0:0", kind, kernel, ours)

    if width > 8:
        with pytest.raises(ObjectError, match="no load can read"):
            ask(CoreKind.FIELD_BYTE_OFFSET, 0)
        return
    assert ask(CoreKind.FIELD_BYTE_OFFSET, 0) == byte
    assert ask(CoreKind.FIELD_BYTE_SIZE, 4) == width
    # Shifted left and right by so much, what was loaded is the field.
    left, right = ask(CoreKind.FIELD_LSHIFT_U64, 56), ask(CoreKind.FIELD_RSHIFT_U64, 61)
    value = 0b101 << at - 8 * byte | 0xFF << (at - 8 * byte + size)
    assert (value << left) % (1 << 64) >> right == 0b101


def test_sign_and_size_of_fields():
    local, mine = simple(of=lambda types: types.u32, at=0)
    for of, signed in (("u32", 0), ("s32", 1)):
        kernel, _ = simple(of=lambda types, of=of: getattr(types, of))
        assert answer(local, mine, "0:0", CoreKind.FIELD_SIGNED, kernel, 0) == signed
    kernel, _ = simple(of=lambda types: types.u64)
    assert answer(local, mine, "0:0", CoreKind.FIELD_BYTE_SIZE, kernel, 4) == 8


def test_types():
    local, mine = simple()
    kernel, theirs = simple()
    assert answer(local, mine, "0", CoreKind.TYPE_EXISTS, kernel, 1) == 1
    assert answer(local, mine, "0", CoreKind.TYPE_SIZE, kernel, 64) == 64
    assert answer(local, mine, "0", CoreKind.TYPE_ID_TARGET, kernel, 0) == theirs
    assert answer(local, mine, "0", CoreKind.TYPE_ID_LOCAL, None, 0) == mine
    other, _ = simple(name="other")
    assert answer(local, mine, "0", CoreKind.TYPE_EXISTS, other, 1) == 0
    assert answer(local, mine, "0", CoreKind.TYPE_MATCHES, other, 1) == 0
    assert answer(local, mine, "0", CoreKind.TYPE_ID_TARGET, other, 7) == 0
    assert answer(local, mine, "0", CoreKind.TYPE_SIZE, other, 64) is None


def test_values_of_enums():
    local, kernel, large = Types(), Types(), Types()
    mine = local.enum("e___mine", ("A___mine", 5), ("GONE", 6))
    kernel.enum("e", ("Z", 1), ("A", 99))
    large.enum("e", ("A", 1 << 40), kind=BtfKind.ENUM64)
    assert answer(local, mine, "0", CoreKind.ENUMVAL_EXISTS, kernel, 1) == 1
    assert answer(local, mine, "0", CoreKind.ENUMVAL_VALUE, kernel, 5) == 99
    assert answer(local, mine, "1", CoreKind.ENUMVAL_EXISTS, kernel, 1) == 0
    assert answer(local, mine, "1", CoreKind.ENUMVAL_VALUE, kernel, 6) is None
    (insn,) = asked(Insn(LD_IMM64, 1, imm=5), local, mine, "0", CoreKind.ENUMVAL_VALUE, large)
    assert insn.imm == 1 << 40


def test_candidates_that_disagree():
    local, mine = simple(at=0)
    kernel = Types()
    kernel.struct("s", 64, ("x", kernel.u32, 64))
    kernel.struct("s", 64, ("other", kernel.u32, 64))
    assert offset(local, mine, "0:0", kernel, 0) == (8, 4)
    kernel.struct("s", 64, ("x", kernel.u32, 64))
    assert offset(local, mine, "0:0", kernel, 0) == (8, 4)
    kernel.struct("s", 64, ("x", kernel.u32, 96))
    with pytest.raises(ObjectError, match="type ids 8 and 11 of the kernel differ: 8 and 12"):
        offset(local, mine, "0:0", kernel, 0)


@pytest.mark.parametrize(
    ("insn", "access", "kind", "reason"),
    [
        (Insn(LDX_W, 1, 2, 5), "0:0", 0, "instruction 0x61 has 5, where FIELD_BYTE_OFFSET is 8"),
        (Insn(MOV, 1, imm=5), "0:0", 0, "instruction 0xb7 has 5"),
        (Insn(LDX_DW, 1, 2, 8), "0:0", 0, None),
        (Insn(CALL, imm=8), "0:0", 0, "is on instruction 0x85"),
        (Insn(0xBF, 1, 2), "0:0", 0, "is on instruction 0xbf"),
        (Insn(LDX_W, 1, 2, 8), "0:1", 0, "member 1 of a type with 1"),
        (Insn(LDX_W, 1, 2, 8), "0:0:0", 0, "INT has no members"),
        (Insn(LDX_W, 1, 2, 8), "", 0, "'' is not an access"),
        (Insn(LDX_W, 1, 2, 8), "0:x", 0, "'0:x' is not an access"),
        (Insn(LDX_W, 1, 2, 8), "0:-1", 0, "is not an access"),
        (Insn(LDX_W, 1, 2, 8), ":".join("0" * 99), 0, "is not an access"),
        (Insn(MOV, 1, imm=8), "0:0", 8, "an access in a relocation of a type"),
        (Insn(MOV, 1, imm=8), "0", 10, "no such value of an enum"),
        (Insn(MOV, 1, imm=8), "0", 4, "is FIELD_LSHIFT_U64 of an element"),
    ],
)
def test_relocations_that_contradict_themselves(insn, access, kind, reason):
    local, mine = simple()
    kernel, _ = simple(at=32)
    if reason is None:  # a load wider than the field, where widths agree, is the program's own affair
        assert asked(insn, local, mine, access, kind, kernel)[0].off == 4
        return
    with pytest.raises(ObjectError, match=reason):
        asked(insn, local, mine, access, kind, kernel)


def test_other_refusals():
    local, mine = simple(at=0)
    far, _ = simple(at=8 * 40000)
    with pytest.raises(ObjectError, match="40000 bytes from its beginning"):
        offset(local, mine, "0:0", far, 0)
    with pytest.raises(ObjectError, match=r"FIELD_BYTE_OFFSET of struct s .* needs the BTF of a kernel"):
        asked(Insn(LDX_W, 1, 2, 0), local, mine, "0:0", 0, None)
    with pytest.raises(ObjectError, match="no type id 999"):
        asked(Insn(LDX_W, 1, 2, 0), local, 999, "0:0", 0, far)
    nameless, struct = simple(name="")
    with pytest.raises(ObjectError, match="a type without a name"):
        asked(Insn(LDX_W, 1, 2, 8), nameless, struct, "0:0", 0, far)


def compare(how, build_ours, build_theirs):
    ours, theirs = Types(), Types()
    mine, other = build_ours(ours), build_theirs(theirs)
    return getattr(TypeComparison(ours.btf(), theirs.btf()), how)(mine, other)


def test_which_fields_can_be_read_as_which():
    kinds = {
        "int": lambda types: types.s32,
        "pointer": lambda types: types.pointer,
        "struct": lambda types: types.struct("a", 4),
        "union": lambda types: types.struct("b", 4, kind=BtfKind.UNION),
        "enum": lambda types: types.enum("e", ("A", 1)),
        "enum64": lambda types: types.enum("e", ("A", 1), kind=BtfKind.ENUM64),
        "other enum": lambda types: types.enum("f", ("A", 1)),
        "float": lambda types: types.add(BtfKind.FLOAT, "float", 4),
        "array": lambda types: types.array(types.u8, 4),
        "array of pointers": lambda types: types.array(types.pointer, 4),
        "typedef of int": lambda types: types.add(BtfKind.TYPEDEF, "t", types.add(BtfKind.CONST, third=types.u64)),
    }
    same = {frozenset(pair) for pair in [("struct", "union"), ("enum", "enum64"), ("int", "typedef of int")]}
    for one, build_one in kinds.items():
        for other, build_other in kinds.items():
            assert compare("fields", build_one, build_other) == (one == other or {one, other} in same), (one, other)


def test_which_types_match():
    def struct(*members, name="s"):
        return lambda types: types.struct(name, 64, *((text, build(types), 0) for text, build in members))

    def pointer(to):
        return lambda types: types.add(BtfKind.PTR, third=to(types))

    def u32(types):
        return types.u32

    def s32(types):
        return types.s32

    def fwd(types):
        return types.add(BtfKind.FWD, "s")

    ours = struct(("x", u32), ("p", pointer(struct(("q", u32)))))
    assert compare("matches", ours, struct(("y", s32), ("p", pointer(struct())), ("x", u32)))
    assert not compare("matches", ours, struct(("x", u32)))
    assert not compare("matches", ours, struct(("x", s32), ("p", pointer(struct()))))
    assert not compare("matches", ours, struct(("x", u32), ("p", pointer(struct(name="t")))))
    assert compare("matches", pointer(fwd), pointer(struct(("x", u32))))
    assert not compare("matches", fwd, struct(("x", u32)))
    assert compare("matches", struct(name="s___mine"), struct(("x", u32)))
    assert compare(
        "matches", lambda types: types.enum("e", ("A", 1)), lambda types: types.enum("e", ("B", 1), ("A", 7))
    )
    assert not compare("matches", lambda types: types.enum("e", ("A", 1)), lambda types: types.enum("e", ("B", 1)))
    assert compare(
        "matches",
        lambda types: types.proto(types.u32, ("a", types.s32)),
        lambda types: types.proto(types.u32, ("b", types.s32)),
    )
    assert not compare(
        "matches", lambda types: types.proto(types.u32), lambda types: types.proto(types.u32, ("b", types.s32))
    )
    assert compare(
        "exists",
        lambda types: types.proto(types.u32, ("a", types.s32)),
        lambda types: types.proto(types.u64, ("b", types.u8)),
    )
    assert not compare("exists", lambda types: types.proto(0), lambda types: types.proto(types.u64))


def test_types_in_a_circle_end():
    def circle(types):
        types.add(BtfKind.PTR, third=types.count + 2)
        types.add(BtfKind.PTR, third=types.count)
        return types.count

    ours = Types()
    mine = circle(ours)
    btf = ours.btf()
    for how in ("exists", "matches"):
        with pytest.raises(BtfError, match="deep"):
            getattr(TypeComparison(btf, btf), how)(mine, mine)
    assert TypeComparison(btf, btf).fields(mine, mine)
    # A struct that contains itself, and anonymous structs without end.
    local, wanted = simple(at=0)
    many = Types()
    many.struct("s", 8, *[("", many.count + 1, 0)] * 3)
    with pytest.raises(ObjectError, match="members to look for x"):
        offset(local, wanted, "0:0", many, 0)


def test_a_program_says_what_the_kernel_lacks():
    path = SELFTEST_FOLDER / "fentry_test.o"
    (program,) = BpfObject.open(path).resolve(without_functions(), names=["test8"], function_id=lambda name: 1)
    (slot, what), *_ = program.missing
    assert "struct bpf_fentry_test_t" in what
    assert f": the kernel has no {what}" in program.place(slot)
    assert "fentry_test.c" in program.place(slot)
