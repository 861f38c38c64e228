"""The interpreter that machine code is compared with, against what RFC 9669 says."""

import pytest

from bpf_interpreter import Interpreter, InterpreterError, Memory
from trampoline.bpf.isa import parse

CTX = 0xFFFF888000001000
MINUS_ONE = (1 << 64) - 1
INT_MIN, LLONG_MIN = 1 << 31, 1 << 63

# r0 before, r1, instruction, r0 after
ALU = [
    (5, 7, "r0 += r1", 12),
    (MINUS_ONE, 1, "r0 += r1", 0),
    (MINUS_ONE, 1, "w0 += w1", 0),
    (0, 0, "r0 += -1", MINUS_ONE),
    (0, 0, "w0 += -1", 0xFFFFFFFF),
    (0, 1, "r0 -= r1", MINUS_ONE),
    (0, 1, "w0 -= w1", 0xFFFFFFFF),
    (1 << 63, 2, "r0 *= r1", 0),
    (0x1_0000_0003, 5, "w0 *= w1", 15),
    (0xF0, 0x0F, "r0 |= r1", 0xFF),
    (0, 0, "r0 |= 0x80000000", 0xFFFFFFFF80000000),
    (0, 0, "w0 |= 0x80000000", 0x80000000),
    (MINUS_ONE, 0, "r0 &= -16", MINUS_ONE - 15),
    (MINUS_ONE, 0, "w0 &= -16", 0xFFFFFFF0),
    (MINUS_ONE, 0xFF, "r0 ^= r1", MINUS_ONE - 0xFF),
    (1, 0, "r0 = -r0", MINUS_ONE),
    (1, 0, "w0 = -w0", 0xFFFFFFFF),
    (LLONG_MIN, 0, "r0 = -r0", LLONG_MIN),
    # division without sign: by zero 0, the remainder is the dividend; immediates are extended with their sign
    (100, 7, "r0 /= r1", 14),
    (100, 7, "r0 %= r1", 2),
    (100, 0, "r0 /= r1", 0),
    (100, 0, "r0 %= r1", 100),
    (0xF_0000_0064, 0, "w0 /= w1", 0),
    (0xF_0000_0064, 0, "w0 %= w1", 100),
    (0xF_0000_0064, 0x1_0000_0000, "w0 %= w1", 100),
    (MINUS_ONE, 0, "r0 /= -1", 1),
    (5, 0, "r0 /= -1", 0),
    (0xFFFFFFFF, 0, "w0 /= -1", 1),
    # with sign: cut towards zero, the remainder has the dividend's sign
    (-7, 2, "r0 s/= r1", -3),
    (-7, 2, "r0 s%= r1", -1),
    (7, -2, "r0 s/= r1", -3),
    (7, -2, "r0 s%= r1", 1),
    (-7, 2, "w0 s/= w1", 0xFFFFFFFD),
    (-7, 2, "w0 s%= w1", 0xFFFFFFFF),
    (-7, 0, "r0 s/= r1", 0),
    (-7, 0, "r0 s%= r1", -7),
    (-7, 0, "w0 s%= w1", 0xFFFFFFF9),
    (LLONG_MIN, -1, "r0 s/= r1", LLONG_MIN),
    (LLONG_MIN, -1, "r0 s%= r1", 0),
    (INT_MIN, -1, "w0 s/= w1", INT_MIN),
    (INT_MIN, -1, "w0 s%= w1", 0),
    # shifts count modulo the width
    (1, 63, "r0 <<= r1", LLONG_MIN),
    (1, 64, "r0 <<= r1", 1),
    (1, 65, "r0 <<= r1", 2),
    (1, 31, "w0 <<= w1", INT_MIN),
    (1, 32, "w0 <<= w1", 1),
    (MINUS_ONE, 32, "w0 >>= w1", 0xFFFFFFFF),
    (LLONG_MIN, 63, "r0 >>= r1", 1),
    (LLONG_MIN, 63, "r0 s>>= r1", MINUS_ONE),
    (LLONG_MIN, 63 + 64, "r0 s>>= r1", MINUS_ONE),
    (INT_MIN, 31, "w0 s>>= w1", 0xFFFFFFFF),
    (INT_MIN, 31, "r0 s>>= r1", 1),
    # moves
    (9, MINUS_ONE, "r0 = r1", MINUS_ONE),
    (MINUS_ONE, MINUS_ONE, "w0 = w1", 0xFFFFFFFF),
    (9, 0, "r0 = -2", -2),
    (9, 0, "w0 = -2", 0xFFFFFFFE),
    (9, 0x180, "r0 = (s8)r1", -128),
    (9, 0x18000, "r0 = (s16)r1", -0x8000),
    (9, 0x7FFF, "r0 = (s16)r1", 0x7FFF),
    (9, 0x1_8000_0000, "r0 = (s32)r1", -INT_MIN),
    (9, 0x180, "w0 = (s8)w1", 0xFFFFFF80),
    (9, 0x8000, "w0 = (s16)w1", 0xFFFF8000),
    (9, 0, "r0 = 0x8000000000000001 ll", LLONG_MIN + 1),
    # byte order
    (0x1122334455667788, 0, "r0 = le16 r0", 0x7788),
    (0x1122334455667788, 0, "r0 = le32 r0", 0x55667788),
    (0x1122334455667788, 0, "r0 = le64 r0", 0x1122334455667788),
    (0x1122334455667788, 0, "r0 = be16 r0", 0x8877),
    (0x1122334455667788, 0, "r0 = be32 r0", 0x88776655),
    (0x1122334455667788, 0, "r0 = be64 r0", 0x8877665544332211),
    (0x1122334455667788, 0, "r0 = bswap16 r0", 0x8877),
    (0x1122334455667788, 0, "r0 = bswap32 r0", 0x88776655),
    (0x1122334455667788, 0, "r0 = bswap64 r0", 0x8877665544332211),
]

# r0, r1, condition, whether it holds
JUMPS = [
    (5, 5, "r0 == r1", True),
    (5, 6, "r0 == r1", False),
    (1 << 32 | 5, 5, "w0 == w1", True),
    (5, 5, "r0 != r1", False),
    (-1, 0, "r0 == -1", True),
    (0xFFFFFFFF, 0, "r0 == -1", False),
    (0xFFFFFFFF, 0, "w0 == -1", True),
    (6, 5, "r0 > r1", True),
    (5, 5, "r0 > r1", False),
    (5, 5, "r0 >= r1", True),
    (-1, 5, "r0 > r1", True),
    (-1, 5, "r0 s> r1", False),
    (-1, 5, "w0 s> w1", False),
    (0x7FFFFFFF, 0, "w0 s> -1", True),
    (-5, -5, "r0 s>= r1", True),
    (4, 5, "r0 < r1", True),
    (5, 5, "r0 <= r1", True),
    (-1, 1, "r0 < r1", False),
    (-1, 1, "r0 s< r1", True),
    (INT_MIN, 1, "r0 s< r1", False),
    (INT_MIN, 1, "w0 s< w1", True),
    (1, 1, "r0 s<= r1", True),
    (6, 2, "r0 & r1", True),
    (6, 8, "r0 & r1", False),
    (1 << 40, 0, "r0 & -1", True),
    (1 << 40, 0, "w0 & -1", False),
]


def run(text, *args, ctx=bytes(16), **options):
    """What the program returns, and its context afterwards."""
    memory = Memory({CTX: ctx})
    return Interpreter(parse(text), memory, **options).run(*args), bytes(memory.regions[CTX])


@pytest.mark.parametrize(("r0", "r1", "insn", "want"), ALU)
def test_arithmetic(r0, r1, insn, want):
    assert run(f"r0 = {r0 % 2**64} ll\nr1 = {r1 % 2**64} ll\n{insn}\nexit")[0] == want % 2**64


@pytest.mark.parametrize(("r0", "r1", "condition", "holds"), JUMPS)
def test_conditions(r0, r1, condition, holds):
    program = f"r0 = {r0 % 2**64} ll\nr1 = {r1 % 2**64} ll\nif {condition} goto yes\nr0 = 0\nexit\nyes:\nr0 = 1\nexit"
    assert run(program)[0] == holds


# instructions with r1 the context, r0 = 7 and r2 = 0x700000003; r0 after; the context after, None: as before
CONTENT = bytes.fromhex("8899aabbccddeeff")
ACCESSES = [
    ("r0 = *(u8 *)(r1 +1)", 0x99, None),
    ("r0 = *(u16 *)(r1 +1)", 0xAA99, None),
    ("r0 = *(u32 *)(r1 +4)", 0xFFEEDDCC, None),
    ("r0 = *(u64 *)(r1 +0)", 0xFFEEDDCCBBAA9988, None),
    ("r0 = *(s8 *)(r1 +0)", 0xFFFFFFFFFFFFFF88, None),
    ("r0 = *(s16 *)(r1 +0)", 0xFFFFFFFFFFFF9988, None),
    ("r0 = *(s32 *)(r1 +0)", 0xFFFFFFFFBBAA9988, None),
    ("*(u8 *)(r1 +1) = 2", 7, "8802aabbccddeeff"),
    ("*(u64 *)(r1 +0) = -2", 7, "feffffffffffffff"),
    ("*(u32 *)(r1 +4) = r2", 7, "8899aabb03000000"),
    ("*(u16 *)(r1 +6) = r2", 7, "8899aabbccdd0300"),
    ("lock *(u64 *)(r1 +0) += r2", 7, "8b99aabbd3ddeeff"),
    ("lock *(u32 *)(r1 +0) += w2", 7, "8b99aabbccddeeff"),
    ("lock *(u32 *)(r1 +4) &= w2", 7, "8899aabb00000000"),
    ("lock *(u32 *)(r1 +0) |= w2", 7, "8b99aabbccddeeff"),
    ("lock *(u64 *)(r1 +0) ^= r2", 7, "8b99aabbcbddeeff"),
    ("r2 = atomic_fetch_add((u64 *)(r1 +0), r2)\nr0 = r2", 0xFFEEDDCCBBAA9988, "8b99aabbd3ddeeff"),
    ("w2 = atomic_fetch_and((u32 *)(r1 +4), w2)\nr0 = r2", 0xFFEEDDCC, "8899aabb00000000"),
    ("r2 = xchg_64(r1 +0, r2)\nr0 = r2", 0xFFEEDDCCBBAA9988, "0300000007000000"),
    ("w2 = xchg32_32(r1 +4, w2)\nr0 = r2", 0xFFEEDDCC, "8899aabb03000000"),
    ("r0 = cmpxchg_64(r1 +0, r0, r2)", 0xFFEEDDCCBBAA9988, None),
    ("r0 = 0xffeeddccbbaa9988 ll\nr0 = cmpxchg_64(r1 +0, r0, r2)", 0xFFEEDDCCBBAA9988, "0300000007000000"),
    ("r0 = 0x1bbaa9988 ll\nw0 = cmpxchg32_32(r1 +0, w0, w2)", 0xBBAA9988, "03000000ccddeeff"),
    ("w0 = cmpxchg32_32(r1 +4, w0, w2)", 0xFFEEDDCC, None),
    ("r0 = load_acquire((u32 *)(r1 +4))", 0xFFEEDDCC, None),
    ("store_release((u16 *)(r1 +0), w2)", 7, "0300aabbccddeeff"),
]


@pytest.mark.parametrize(("insns", "r0", "after"), ACCESSES)
def test_memory(insns, r0, after):
    got = run(f"r0 = 7\nr2 = 0x700000003 ll\n{insns}\nexit", CTX, ctx=CONTENT)
    assert got == (r0, bytes.fromhex(after) if after else CONTENT)


def test_calls_keep_r6_to_r10_and_have_a_stack_of_their_own():
    program = """
        r6 = 1
        *(u64 *)(r10 -8) = 5
        r1 = 40
        r2 = r10
        call add
        r1 = *(u64 *)(r10 -8)
        r0 += r1
        r0 += r6
        exit
    add:
        r6 = 100
        *(u64 *)(r10 -8) = 77
        r2 -= r10
        r0 = r1
        r0 += r2
        exit
    """
    assert run(program)[0] == 40 + 512 + 5 + 1


def test_helpers_are_called_with_five_arguments():
    program = "r1 = 1\nr2 = 2\nr3 = 3\nr4 = 4\nr5 = -5\ncall 99\nexit"
    assert run(program, helpers={99: lambda *args: sum(args)})[0] == 5


def test_long_jumps_and_loops():
    program = "r0 = 0\nr1 = 5\nagain:\nr0 += r1\nr1 -= 1\nif r1 != 0 goto again\ngotol out\nr0 = 9\nout:\nexit"
    assert run(program)[0] == 15


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("r0 = *(u64 *)(r1 +9)\nexit", "no 8 bytes at 0xffff888000001009"),
        ("r0 = *(u8 *)(r10 +0)\nexit", "no 1 bytes"),
        ("goto -1", "still running after 1000000 steps"),
        ("r0 = 1", "no instruction at slot 1"),
        ("goto +1\nr0 = 5 ll\nexit", "no instruction at slot 2"),
        ("f:\ncall f\nexit", "too many frames"),
        ("call 99\nexit", "no function 99 of kind 0"),
        ("r1 = map[fd:1] ll\nexit", "not a plain immediate"),
    ],
)
def test_what_has_no_meaning_is_an_error(program, message):
    with pytest.raises(InterpreterError, match=message):
        run(program, CTX)
