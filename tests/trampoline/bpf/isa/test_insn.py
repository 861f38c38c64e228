"""Instructions as bytes, values and text: one table, then properties."""

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paths import FIXTURES
from trampoline.bpf.errors import BytecodeError
from trampoline.bpf.isa import Insn, decode, encode, fault, format_insn, format_program, parse, places
from trampoline.bpf.isa.forms import LOADABLE, REWRITTEN
from trampoline.bpf.isa.insn import LD_IMM64, Atomic

RECORDED = FIXTURES / "bytecode" / "recorded.txt"
UNRECORDED = {0x40}  # LD | IND of 32 bits

ADDRESS = 0xFFFFFFFF00001000

# bytes, fields (code, dst, src, off, imm), text
HAVE_WANT = [
    # ALU64
    ("07 01 0000 05000000", (0x07, 1, 0, 0, 5), "r1 += 5"),
    ("0f 21 0000 00000000", (0x0F, 1, 2, 0, 0), "r1 += r2"),
    ("17 01 0000 ffffffff", (0x17, 1, 0, 0, -1), "r1 -= -1"),
    ("2f 31 0000 00000000", (0x2F, 1, 3, 0, 0), "r1 *= r3"),
    ("37 01 0000 07000000", (0x37, 1, 0, 0, 7), "r1 /= 7"),
    ("37 01 0100 07000000", (0x37, 1, 0, 1, 7), "r1 s/= 7"),
    ("3f 21 0100 00000000", (0x3F, 1, 2, 1, 0), "r1 s/= r2"),
    ("47 01 0000 0f000000", (0x47, 1, 0, 0, 15), "r1 |= 15"),
    ("5f 21 0000 00000000", (0x5F, 1, 2, 0, 0), "r1 &= r2"),
    ("67 01 0000 20000000", (0x67, 1, 0, 0, 32), "r1 <<= 32"),
    ("7f 21 0000 00000000", (0x7F, 1, 2, 0, 0), "r1 >>= r2"),
    ("87 01 0000 00000000", (0x87, 1, 0, 0, 0), "r1 = -r1"),
    ("97 01 0000 03000000", (0x97, 1, 0, 0, 3), "r1 %= 3"),
    ("9f 21 0100 00000000", (0x9F, 1, 2, 1, 0), "r1 s%= r2"),
    ("af 21 0000 00000000", (0xAF, 1, 2, 0, 0), "r1 ^= r2"),
    ("b7 00 0000 feffffff", (0xB7, 0, 0, 0, -2), "r0 = -2"),
    ("bf a1 0000 00000000", (0xBF, 1, 10, 0, 0), "r1 = r10"),
    ("bf 21 0800 00000000", (0xBF, 1, 2, 8, 0), "r1 = (s8)r2"),
    ("bf 21 1000 00000000", (0xBF, 1, 2, 16, 0), "r1 = (s16)r2"),
    ("bf 21 2000 00000000", (0xBF, 1, 2, 32, 0), "r1 = (s32)r2"),
    ("bf 21 0100 01000000", (0xBF, 1, 2, 1, 1), "r1 = addr_space_cast(r2, 0, 1)"),
    ("bf 21 0100 00000100", (0xBF, 1, 2, 1, 65536), "r1 = addr_space_cast(r2, 1, 0)"),
    ("c7 01 0000 3f000000", (0xC7, 1, 0, 0, 63), "r1 s>>= 63"),
    ("d7 00 0000 10000000", (0xD7, 0, 0, 0, 16), "r0 = bswap16 r0"),
    ("d7 00 0000 40000000", (0xD7, 0, 0, 0, 64), "r0 = bswap64 r0"),
    # ALU
    ("04 00 0000 05000000", (0x04, 0, 0, 0, 5), "w0 += 5"),
    ("34 01 0100 07000000", (0x34, 1, 0, 1, 7), "w1 s/= 7"),
    ("84 01 0000 00000000", (0x84, 1, 0, 0, 0), "w1 = -w1"),
    ("bc 21 0000 00000000", (0xBC, 1, 2, 0, 0), "w1 = w2"),
    ("bc 21 1000 00000000", (0xBC, 1, 2, 16, 0), "w1 = (s16)w2"),
    ("cc 21 0000 00000000", (0xCC, 1, 2, 0, 0), "w1 s>>= w2"),
    ("d4 01 0000 20000000", (0xD4, 1, 0, 0, 32), "r1 = le32 r1"),
    ("dc 01 0000 40000000", (0xDC, 1, 0, 0, 64), "r1 = be64 r1"),
    # jumps and calls
    ("05 00 0300 00000000", (0x05, 0, 0, 3, 0), "goto +3"),
    ("06 00 0000 feffffff", (0x06, 0, 0, 0, -2), "gotol -2"),
    ("0d 03 0000 00000000", (0x0D, 3, 0, 0, 0), "gotox r3"),
    ("e5 00 0100 00000000", (0xE5, 0, 0, 1, 0), "may_goto +1"),
    ("15 01 ffff 00000000", (0x15, 1, 0, -1, 0), "if r1 == 0 goto -1"),
    ("2d 21 0300 00000000", (0x2D, 1, 2, 3, 0), "if r1 > r2 goto +3"),
    ("35 01 0300 05000000", (0x35, 1, 0, 3, 5), "if r1 >= 5 goto +3"),
    ("46 02 0000 01000000", (0x46, 2, 0, 0, 1), "if w2 & 0x1 goto +0"),
    ("55 01 0300 ffffffff", (0x55, 1, 0, 3, -1), "if r1 != -1 goto +3"),
    ("65 01 0300 05000000", (0x65, 1, 0, 3, 5), "if r1 s> 5 goto +3"),
    ("7e 21 0300 00000000", (0x7E, 1, 2, 3, 0), "if w1 s>= w2 goto +3"),
    ("a6 01 0300 05000000", (0xA6, 1, 0, 3, 5), "if w1 < 5 goto +3"),
    ("bd 21 0300 00000000", (0xBD, 1, 2, 3, 0), "if r1 <= r2 goto +3"),
    ("c5 01 0300 00000000", (0xC5, 1, 0, 3, 0), "if r1 s< 0 goto +3"),
    ("d5 01 0300 00000000", (0xD5, 1, 0, 3, 0), "if r1 s<= 0 goto +3"),
    ("85 00 0000 01000000", (0x85, 0, 0, 0, 1), "call 1"),
    ("85 10 0000 03000000", (0x85, 0, 1, 0, 3), "call pc+3"),
    ("85 20 0000 39300000", (0x85, 0, 2, 0, 12345), "call kfunc 12345"),
    ("85 20 0100 39300000", (0x85, 0, 2, 1, 12345), "call kfunc 12345 off=1"),
    ("95 00 0000 00000000", (0x95, 0, 0, 0, 0), "exit"),
    # immediates of 64 bits
    ("18 01 0000 23010000 00000000 00000000", (0x18, 1, 0, 0, 0x123), "r1 = 0x123 ll"),
    ("18 01 0000 ffffffff 00000000 00000080", (0x18, 1, 0, 0, 0x80000000FFFFFFFF), "r1 = 0x80000000ffffffff ll"),
    ("18 11 0000 05000000 00000000 00000000", (0x18, 1, 1, 0, 5), "r1 = map[fd:5] ll"),
    ("18 21 0000 05000000 00000000 08000000", (0x18, 1, 2, 0, 8 << 32 | 5), "r1 = map[fd:5][0]+8 ll"),
    ("18 31 0000 4d000000 00000000 00000000", (0x18, 1, 3, 0, 77), "r1 = btf[id:77] ll"),
    ("18 31 0000 4d000000 00000000 03000000", (0x18, 1, 3, 0, 3 << 32 | 77), "r1 = btf[id:77, fd:3] ll"),
    ("18 41 0000 feffffff 00000000 00000000", (0x18, 1, 4, 0, 0xFFFFFFFE), "r1 = subprog[-2] ll"),
    ("18 51 0000 01000000 00000000 00000000", (0x18, 1, 5, 0, 1), "r1 = map[idx:1] ll"),
    ("18 61 0000 01000000 00000000 04000000", (0x18, 1, 6, 0, 4 << 32 | 1), "r1 = map[idx:1][0]+4 ll"),
    # memory
    ("79 10 0800 00000000", (0x79, 0, 1, 8, 0), "r0 = *(u64 *)(r1 +8)"),
    ("61 10 f8ff 00000000", (0x61, 0, 1, -8, 0), "w0 = *(u32 *)(r1 -8)"),
    ("69 10 0000 00000000", (0x69, 0, 1, 0, 0), "w0 = *(u16 *)(r1 +0)"),
    ("71 10 0000 00000000", (0x71, 0, 1, 0, 0), "w0 = *(u8 *)(r1 +0)"),
    ("81 10 0400 00000000", (0x81, 0, 1, 4, 0), "r0 = *(s32 *)(r1 +4)"),
    ("89 10 0400 00000000", (0x89, 0, 1, 4, 0), "r0 = *(s16 *)(r1 +4)"),
    ("91 10 0400 00000000", (0x91, 0, 1, 4, 0), "r0 = *(s8 *)(r1 +4)"),
    ("62 0a fcff 05000000", (0x62, 10, 0, -4, 5), "*(u32 *)(r10 -4) = 5"),
    ("7a 0a f8ff ffffffff", (0x7A, 10, 0, -8, -1), "*(u64 *)(r10 -8) = -1"),
    ("63 1a fcff 00000000", (0x63, 10, 1, -4, 0), "*(u32 *)(r10 -4) = w1"),
    ("7b 1a f8ff 00000000", (0x7B, 10, 1, -8, 0), "*(u64 *)(r10 -8) = r1"),
    ("7b 1b f8ff 00000000", (0x7B, 11, 1, -8, 0), "*(u64 *)(r11 -8) = r1"),
    ("30 00 0000 0e000000", (0x30, 0, 0, 0, 14), "r0 = *(u8 *)skb[14]"),
    ("40 20 0000 fcffffff", (0x40, 0, 2, 0, -4), "r0 = *(u32 *)skb[r2 + -4]"),
    # atomic
    ("db 21 0000 00000000", (0xDB, 1, 2, 0, 0x00), "lock *(u64 *)(r1 +0) += r2"),
    ("c3 21 0400 40000000", (0xC3, 1, 2, 4, 0x40), "lock *(u32 *)(r1 +4) |= w2"),
    ("db 21 0000 50000000", (0xDB, 1, 2, 0, 0x50), "lock *(u64 *)(r1 +0) &= r2"),
    ("db 21 0000 a0000000", (0xDB, 1, 2, 0, 0xA0), "lock *(u64 *)(r1 +0) ^= r2"),
    ("db 21 0000 01000000", (0xDB, 1, 2, 0, 0x01), "r2 = atomic_fetch_add((u64 *)(r1 +0), r2)"),
    ("c3 21 0000 41000000", (0xC3, 1, 2, 0, 0x41), "w2 = atomic_fetch_or((u32 *)(r1 +0), w2)"),
    ("db 21 0000 51000000", (0xDB, 1, 2, 0, 0x51), "r2 = atomic_fetch_and((u64 *)(r1 +0), r2)"),
    ("db 21 0000 a1000000", (0xDB, 1, 2, 0, 0xA1), "r2 = atomic_fetch_xor((u64 *)(r1 +0), r2)"),
    ("db 21 0800 e1000000", (0xDB, 1, 2, 8, 0xE1), "r2 = xchg_64(r1 +8, r2)"),
    ("c3 21 0800 e1000000", (0xC3, 1, 2, 8, 0xE1), "w2 = xchg32_32(r1 +8, w2)"),
    ("db 21 0800 f1000000", (0xDB, 1, 2, 8, 0xF1), "r0 = cmpxchg_64(r1 +8, r0, r2)"),
    ("c3 21 0800 f1000000", (0xC3, 1, 2, 8, 0xF1), "w0 = cmpxchg32_32(r1 +8, w0, w2)"),
    ("db 21 0800 00010000", (0xDB, 1, 2, 8, 0x100), "r1 = load_acquire((u64 *)(r2 +8))"),
    ("d3 21 0800 00010000", (0xD3, 1, 2, 8, 0x100), "w1 = load_acquire((u8 *)(r2 +8))"),
    ("cb 21 0800 10010000", (0xCB, 1, 2, 8, 0x110), "store_release((u16 *)(r1 +8), w2)"),
]

# What only the verifier makes.
HAVE_WANT_REWRITTEN = [
    ("39 10 0800 00000000", (0x39, 0, 1, 8, 0), "probe r0 = *(u64 *)(r1 +8)"),
    ("41 10 0800 00000000", (0x41, 0, 1, 8, 0), "probe r0 = *(s32 *)(r1 +8)"),
    ("a1 10 0800 00000000", (0xA1, 0, 1, 8, 0), "arena w0 = *(u32 *)(r1 +8)"),
    ("d1 10 0800 00000000", (0xD1, 0, 1, 8, 0), "arena r0 = *(s8 *)(r1 +8)"),
    ("a2 01 0800 07000000", (0xA2, 1, 0, 8, 7), "arena *(u32 *)(r1 +8) = 7"),
    ("bb 21 0800 00000000", (0xBB, 1, 2, 8, 0), "arena *(u64 *)(r1 +8) = r2"),
    ("fb 21 0800 00000000", (0xFB, 1, 2, 8, 0), "arena lock *(u64 *)(r1 +8) += r2"),
    ("e3 21 0800 00010000", (0xE3, 1, 2, 8, 0x100), "arena w1 = load_acquire((u32 *)(r2 +8))"),
    ("c2 00 0000 00000000", (0xC2, 0, 0, 0, 0), "nospec"),
    ("f5 00 0000 01000000", (0xF5, 0, 0, 0, 1), "tail_call 1"),
    ("bc 11 0000 01000000", (0xBC, 1, 1, 0, 1), "w1 = zext w1"),
    ("bf 21 ffff 00000000", (0xBF, 1, 2, -1, 0), "r1 = &(void __percpu *)(r2)"),
    ("bf 1c 0000 00000000", (0xBF, 12, 1, 0, 0), "r12 = r1"),
    ("85 10 0200 03000000", (0x85, 0, 1, 2, 3), "call pc+3 off=2"),
    ("18 11 0000 00100000 00000000 ffffffff", (0x18, 1, 1, 0, ADDRESS), "r1 = map[fd:0xffffffff00001000] ll"),
    ("18 41 0100 00100000 00000000 ffffffff", (0x18, 1, 4, 1, ADDRESS), "r1 = subprog[0xffffffff00001000] ll off=1"),
]


@pytest.mark.parametrize(("data", "fields", "text"), HAVE_WANT, ids=[row[2] for row in HAVE_WANT])
def test_bytes_value_text(data, fields, text):
    data, insn = bytes.fromhex(data), Insn(*fields)
    assert decode(data) == (insn,)
    assert encode([insn]) == data
    assert format_insn(insn) == text
    assert parse(text) == (insn,)


@pytest.mark.parametrize(("data", "fields", "text"), HAVE_WANT_REWRITTEN, ids=[row[2] for row in HAVE_WANT_REWRITTEN])
def test_what_only_the_verifier_makes_has_to_be_asked_for(data, fields, text):
    data, insn = bytes.fromhex(data), Insn(*fields)
    assert decode(data, rewritten=True) == (insn,)
    assert encode([insn]) == data
    assert format_insn(insn) == text
    assert parse(text, rewritten=True) == (insn,)
    assert fault(insn)
    with pytest.raises(BytecodeError, match=r"^slot 0: "):
        decode(data)


def test_the_table_has_every_kind_of_atomic_operation():
    assert {fields[4] for _, fields, _ in HAVE_WANT if fields[0] in (0xDB, 0xC3, 0xCB)} == set(Atomic)


@pytest.mark.parametrize(
    ("data", "slot", "reason"),
    [
        ("9500000000000000 ff00000000000000", 1, "unknown opcode 0xff"),
        ("9500000000000000 8d01000000000000", 1, "unknown opcode 0x8d"),
        ("0f21000001000000", 0, "opcode 0x0f: reserved field imm is 1"),
        ("0721000001000000", 0, "opcode 0x07: reserved field src is 2"),
        ("9500010000000000", 0, "opcode 0x95: reserved field off is 1"),
        ("8501000001000000", 0, "opcode 0x85: reserved field dst is 1"),
        ("8500010001000000", 0, "opcode 0x85: reserved field off is 1"),
        ("8530000001000000", 0, "opcode 0x85: unknown kind of call 3"),
        ("3701020001000000", 0, "opcode 0x37: off is 2, not one of 0, 1"),
        ("bc21200000000000", 0, "opcode 0xbc: off is 32, not one of 0, 8, 16"),
        ("bf21010002000000", 0, "opcode 0xbf: imm is 2, not one of 1, 65536"),
        ("dc01000018000000", 0, "opcode 0xdc: imm is 24, not one of 16, 32, 64"),
        ("db21000020000000", 0, "opcode 0xdb: unknown atomic operation 0x20 of 64 bits"),
        ("cb21000000000000", 0, "opcode 0xcb: unknown atomic operation 0x0 of 16 bits"),
        ("b70b000000000000", 0, "opcode 0xb7: no register 11 for dst"),
        ("79b1080000000000", 0, None),
        ("71b1080000000000", 0, "opcode 0x71: no register 11 for src"),
        ("9500000000000000 1801000000000000", 1, "the second slot of LD_IMM64 is missing"),
        ("1801000000000000 0001000000000000", 1, "the second slot of LD_IMM64 has more than an immediate"),
        ("1871000000000000 0000000000000000", 0, "opcode 0x18: unknown kind of immediate 7"),
        ("1811000000000000 0000000001000000", 0, "opcode 0x18: the second slot of a map is not zero"),
        ("1801010000000000 0000000000000000", 0, "opcode 0x18: reserved field off is 1"),
        ("9500000000000000 950000", 1, "3 bytes are left over, a slot has 8"),
    ],
)
def test_what_is_no_instruction_is_named_with_its_slot(data, slot, reason):
    data = bytes.fromhex(data)
    if reason is None:
        assert encode(decode(data)) == data
        return
    with pytest.raises(BytecodeError) as caught:
        decode(data)
    assert (caught.value.slot, caught.value.reason) == (slot, reason)
    assert str(caught.value) == f"slot {slot}: {reason}"


@pytest.mark.parametrize(
    "fields", [(256,), (7, 16), (7, -1), (7, 0, 16), (7, 0, 0, 1 << 15), (7, 0, 0, 0, 1 << 31), (LD_IMM64, 0, 0, 0, -1)]
)
def test_a_field_that_does_not_fit_is_refused(fields):
    with pytest.raises(BytecodeError, match="does not fit"):
        Insn(*fields)


def test_a_value_may_hold_what_kernels_refuse():
    insn = Insn(0x0F, 1, 2, 0, 1)
    assert encode([insn]) == bytes.fromhex("0f21000001000000")
    with pytest.raises(BytecodeError, match="reserved field imm"):
        format_insn(insn)


def test_places_count_ld_imm64_twice():
    assert places(parse("r1 = 1 ll\nr0 = 0\nexit")) == [0, 2, 3, 4]


_SMALL = st.sampled_from([0, 0, 0, 1, 8, 16, 32, 64, -1, 0x40, 0x50, 0xA1, 0xE1, 0xF1, 0x100, 0x110, 1 << 16])


@st.composite
def instructions(draw, codes):
    """An instruction of any of these codes: its fields are drawn, and those that it does not use set to zero."""
    code = draw(st.sampled_from(sorted(codes)))
    rewritten = code in REWRITTEN
    imm = st.integers(0, (1 << 64) - 1) if code == LD_IMM64 else _SMALL | st.integers(-(1 << 31), (1 << 31) - 1)
    fields = {
        "dst": draw(st.integers(0, 12)),
        "src": draw(st.integers(0, 12)),
        "off": draw(_SMALL.filter(lambda n: n < 0x8000) | st.integers(-0x8000, 0x7FFF)),
        "imm": draw(imm),
    }
    for count in range(4, -1, -1):
        for kept in combinations(fields, count):
            insn = Insn(code, **{field: fields[field] for field in kept})
            if not fault(insn, rewritten=rewritten):
                return insn
    widths = [w for w in (16, 1) if not fault(Insn(code, 1, imm=w), rewritten=rewritten)]
    return Insn(code, 1, imm=widths[0]) if widths else Insn(code, 1, 2, 0, 0x100)


@settings(max_examples=500)
@given(st.lists(instructions(LOADABLE), max_size=6))
def test_programs_survive_bytes_and_text(program):
    program = tuple(program)
    assert decode(encode(program)) == program
    assert parse(format_program(program)) == program
    assert parse("\n".join(map(format_insn, program))) == program


@settings(max_examples=200)
@given(st.lists(instructions(LOADABLE | REWRITTEN), max_size=6))
def test_rewritten_programs_survive_bytes_and_text(program):
    program = tuple(program)
    assert decode(encode(program), rewritten=True) == program
    assert parse(format_program(program), rewritten=True) == program


def random_bytes():
    """Any bytes; and slots of known codes with any fields."""
    known = st.tuples(st.sampled_from(sorted(LOADABLE)), st.binary(min_size=7, max_size=7))
    return st.binary(max_size=40) | known.map(lambda slot: bytes([slot[0]]) + slot[1]) | _sparse_slots()


def _sparse_slots():
    """Slots of known codes whose other bytes are mostly zero, so that many are instructions."""
    byte = st.sampled_from([0, 0, 0, 0, 1, 0x10, 0x21])
    slot = st.tuples(st.sampled_from(sorted(LOADABLE)), st.lists(byte, min_size=7, max_size=7))
    return st.lists(slot.map(lambda slot: bytes([slot[0], *slot[1]])), max_size=4).map(b"".join)


@settings(max_examples=800)
@given(random_bytes())
def test_random_bytes_are_instructions_or_the_typed_error(data):
    for rewritten in (False, True):
        try:
            program = decode(data, rewritten=rewritten)
        except BytecodeError as error:
            place = error.slot
        else:
            place = 0
            assert encode(program) == data
            assert parse(format_program(program), rewritten=rewritten) == program
        assert place in range(len(data) // 8 + 1)


def recorded():
    for line in RECORDED.read_text().splitlines():
        if not line.startswith("#"):
            name, kind, data = line.split()
            yield pytest.param(bytes.fromhex(data), kind == "rewritten", id=f"{name}-{kind}")


@pytest.mark.parametrize(("data", "rewritten"), list(recorded()))
def test_recorded_programs_survive_text(data, rewritten):
    program = decode(data, rewritten=rewritten)
    assert encode(program) == data
    assert parse(format_program(program), rewritten=rewritten) == program


def test_recorded_programs_have_every_opcode_that_was_recorded():
    codes = {insn.code for param in recorded() for insn in decode(param.values[0], rewritten=True)}
    assert LOADABLE - codes == UNRECORDED
