"""Small programs and what kernels say to them: errno and the decisive line."""

from errno import E2BIG, EACCES, EBADF, EINVAL

import pytest
from kernel_releases import RELEASES, kernel_view

from btf_writer import Writer
from trampoline.bpf.isa.insn import Insn
from trampoline.bpf.isa.parse import parse
from trampoline.bpf.program import BpfProgram, MapSpec
from trampoline.bpf.uapi import MapType, ProgType
from trampoline.bpf.verifier.errors import VerifierError
from trampoline.bpf.verifier.prepass.raw_insns import decode_program
from trampoline.bpf.verifier.state.env import Capabilities
from trampoline.bpf.verifier.state.result import Pointee
from trampoline.bpf.verifier.walk.bpf_check import bpf_check

ALL = tuple(RELEASES)


def _btf():
    writer = Writer()
    writer.int("int", 4, 1)
    return writer.btf()


BTF = _btf()
MAPS = (
    MapSpec("counts", MapType.ARRAY, 4, 16, 1),
    MapSpec("table", MapType.HASH, 8, 16, 4),
    MapSpec("constants", MapType.ARRAY, 4, 8, 1, flags=1 << 7, readonly=True, initial=bytes(range(8))),
    MapSpec("hole", MapType.UNSPEC, 0, 0, 0),
)
END = "r0 = 0\nexit"


def check(text, release="7.2", **changes):
    insns = parse(text) if isinstance(text, str) else text
    program = BpfProgram("p", insns, ProgType.RAW_TRACEPOINT, maps=MAPS, **changes)
    return bpf_check(program, kernel_view(release, BTF), log_level=2)


def refusal(text, release="7.2", **changes):
    with pytest.raises(VerifierError) as caught:
        check(text, release, **changes)
    return caught.value


UNKNOWN_OVER_64_BITS = {
    **dict.fromkeys(("w2 /= w3", "w2 %= w3", "w2 <<= w3", "w2 >>= w3", "w2 s>>= w3"), ALL),
    **dict.fromkeys(("w2 /= 3", "w2 %= 3"), ("6.12", "6.18")),
    **dict.fromkeys(("w2 *= w3", "w2 |= w3", "w2 ^= w3"), ("6.1",)),
}
"""32-bit operations after which a release knows nothing of the upper half either (``adjust_scalar_min_max_vals()``)."""
REFUSED = [
    # Registers.
    ("an unset register is read", "r0 = r3\nexit", EACCES, "R3 !read_ok", ALL),
    ("R0 is not set at the exit", "exit", EACCES, "R0 !read_ok", ALL),
    ("the frame pointer is written", f"r10 = 1\n{END}", EACCES, "frame pointer is read only", ALL),
    (
        "a callee's R1 is not its caller's later",
        f"r1 = 1\ncall f\nr0 = r1\nexit\nf:\n{END}",
        EACCES,
        "R1 !read_ok",
        ALL,
    ),
    # Control flow.
    ("what no path reaches", f"goto L\nr0 = 1\nL:\n{END}", EINVAL, "unreachable insn 1", ALL),
    ("the end is run into", "r0 = 0", EINVAL, "last insn is not an exit or jmp", ALL),
    ("a jump goes out", f"if r1 != 0 goto +100\n{END}", EINVAL, "jump out of range from insn 0 to 101", ALL),
    (
        "nothing changes in a loop",
        f"r1 = 1\nL:\nif r1 == 1 goto L\n{END}",
        EINVAL,
        "infinite loop detected at insn 1",
        ALL,
    ),
    (
        "a loop of a million rounds",
        f"r1 = 0\nL:\nr1 += 1\nif r1 != 0x7fffffff goto L\n{END}",
        E2BIG,
        "BPF program is too large. Processed 1000001 insn",
        ALL,
    ),
    (
        "a loop that a counter on the stack ends too late",
        "*(u64 *)(r10 -8) = 0\nL:\nr1 = *(u64 *)(r10 -8)\nr1 += 1\n*(u64 *)(r10 -8) = r1\nif r1 < 900000 goto L\n"
        + END,
        E2BIG,
        "BPF program is too large. Processed 1000001 insn",
        ("6.12", "7.2"),
    ),
    ("a function calls itself", f"call f\n{END}\nf:\ncall f\n{END}", EINVAL, "back-edge from insn 3 to 3", ("6.1",)),
    (
        "a function calls itself",
        f"call f\n{END}\nf:\ncall f\n{END}",
        E2BIG,
        "the call stack of 9 frames is too deep",
        ("6.12",),
    ),
    ("a function calls itself", f"call f\n{END}\nf:\ncall f\n{END}", EINVAL, "recursive call from () to ()", ("7.2",)),
    # Arithmetic.
    ("a division by zero", f"r1 = 1\nr1 /= 0\n{END}", EINVAL, "div by zero", ALL),
    ("a shift too far", f"r1 = 1\nr1 <<= 64\n{END}", EINVAL, "invalid shift 64", ALL),
    ("a shift too far in 32 bits", f"w1 = 1\nw1 <<= 32\n{END}", EINVAL, "invalid shift 32", ALL),
    ("pointers are added", f"r1 += r10\n{END}", EACCES, "R1 pointer += pointer prohibited", ALL),
    ("a pointer is multiplied", f"r10 *= 2\n{END}", EACCES, "frame pointer is read only", ALL),
    ("a copy of it is", f"r2 = r10\nr2 *= 2\n{END}", EACCES, "R2 pointer arithmetic with *= operator prohibited", ALL),
    ("a pointer is masked", f"r2 = r10\nr2 &= -8\n{END}", EACCES, "R2 bitwise operator &= on pointer prohibited", ALL),
    ("half a pointer is added to", f"r2 = r10\nw2 += 4\n{END}", EACCES, "R2 32-bit pointer arithmetic prohibited", ALL),
    (
        "the stack is subtracted from",
        f"r2 = r10\nr2 -= 8\n{END}",
        EACCES,
        "R2 subtraction from stack pointer prohibited",
        ALL,
    ),
    ("a pointer from a number", f"r2 = 1\nr2 -= r10\n{END}", EACCES, "R2 tried to subtract pointer from scalar", ALL),
    # Stack.
    ("above the frame", f"*(u64 *)(r10 +0) = 0\n{END}", EACCES, "invalid write to stack R10 off=0 size=8", ALL),
    ("below the frame", f"*(u8 *)(r10 -513) = 0\n{END}", EACCES, "invalid write to stack R10 off=-513 size=1", ALL),
    ("out of line", f"*(u64 *)(r10 -12) = 0\n{END}", EACCES, "misaligned stack access off 0+-12 size 8", ALL),
    ("half a pointer is spilled", f"*(u32 *)(r10 -8) = r1\n{END}", EACCES, "invalid size of register spill", ALL),
    (
        "half a pointer is filled",
        f"*(u64 *)(r10 -8) = r1\nw2 = *(u32 *)(r10 -8)\n{END}",
        EACCES,
        "invalid size of register fill",
        ALL,
    ),
    (
        "a pointer whose slot was written to is none",
        f"*(u64 *)(r10 -8) = r10\n*(u8 *)(r10 -8) = 0\nr1 = *(u64 *)(r10 -8)\nr2 = *(u64 *)(r1 +0)\n{END}",
        EACCES,
        "R1 invalid mem access 'scalar'",
        ALL,
    ),
    (
        "the callee's stack is left in the caller's",
        f"r1 = r10\nr1 += -8\ncall f\n{END}\nf:\n*(u64 *)(r1 +0) = r10\n{END}",
        EINVAL,
        "cannot spill pointers to stack into stack frame of the caller",
        ALL,
    ),
    (
        "a stack pointer is returned",
        f"call f\n{END}\nf:\nr0 = r10\nexit",
        EINVAL,
        "cannot return stack pointer to the caller",
        ALL,
    ),
    (
        "a place on the stack that may be any",
        f"r2 = *(u64 *)(r1 +0)\nr3 = r10\nr3 += r2\n*(u8 *)(r3 +0) = 0\n{END}",
        EINVAL,
        "math between fp pointer and register with unbounded min value is not allowed",
        ALL,
    ),
    # Maps.
    (
        "behind a map's value",
        f"r1 = map[fd:0][0]+0\nr2 = *(u64 *)(r1 +9)\n{END}",
        EACCES,
        "R1 min value is outside of the allowed memory range",
        ALL,
    ),
    (
        "a read-only map is written",
        f"r1 = map[fd:2][0]+0\n*(u8 *)(r1 +0) = 1\n{END}",
        EACCES,
        "write into map forbidden, value_size=8 off=0 size=1",
        ALL,
    ),
    (
        "an index that is bounded too widely",
        f"r2 = *(u64 *)(r1 +0)\nr2 &= 31\nr1 = map[fd:0][0]+0\nr1 += r2\nr2 = *(u8 *)(r1 +0)\n{END}",
        EACCES,
        "R1 max value is outside of the allowed memory range",
        ALL,
    ),
    *(
        (
            f"an index that is unknown over 64 bits after {operation}",
            f"r2 = *(u64 *)(r1 +0)\nr3 = *(u64 *)(r1 +8)\n{operation}\nr1 = map[fd:0][0]+0\nr1 += r2\n{END}",
            EINVAL,
            "math between map_value pointer and register with unbounded min value is not allowed",
            releases,
        )
        for operation, releases in UNKNOWN_OVER_64_BITS.items()
    ),
    (
        "an index that may be negative",
        f"r2 = *(u64 *)(r1 +0)\nif r2 s> 7 goto L\nr1 = map[fd:0][0]+0\nr1 += r2\nr2 = *(u8 *)(r1 +0)\nL:\n{END}",
        EINVAL,
        "math between map_value pointer and register with unbounded min value is not allowed",
        ALL,
    ),
    (
        "an address in a hash",
        f"r1 = map[fd:1][0]+0\n{END}",
        EINVAL,
        "no direct value access support for this map type",
        ALL,
    ),
    ("no such map", f"r1 = map[fd:9]\n{END}", EBADF, "fd 9 is not pointing to valid bpf_map", ALL),
    ("not a map", f"r1 = map[fd:3]\n{END}", EINVAL, "fd 3 is not pointing to valid bpf_map", ALL),
    # Operations.
    (
        "an atomic operation on the context",
        f"r2 = 1\nlock *(u64 *)(r1 +0) += r2\n{END}",
        EACCES,
        "BPF_ATOMIC stores into R1 ctx is not allowed",
        ALL,
    ),
    (
        "one out of line",
        f"r2 = 1\nr3 = map[fd:0][0]+0\nlock *(u64 *)(r3 +4) += r2\n{END}",
        EACCES,
        "misaligned access off 0+4 size 8",
        ALL,
    ),
    (
        "packets in a tracing program",
        f"r6 = r1\nr0 = *(u8 *)skb[0]\n{END}",
        EINVAL,
        "BPF_LD_[ABS|IND] instructions not allowed for this program type",
        ALL,
    ),
    ("sign extension came later", f"r2 = 1\nr2 = (s8)r2\n{END}", EINVAL, "BPF_MOV uses reserved fields", ("6.1",)),
    ("may_goto to nowhere", f"may_goto +0\n{END}", EINVAL, "invalid may_goto off 0 imm 0", ("6.12",)),
]


@pytest.mark.parametrize(
    ("text", "errno", "message", "release"),
    [pytest.param(*row[1:4], release, id=f"{row[0]} ({release})") for row in REFUSED for release in row[4]],
)
def test_refused(text, errno, message, release):
    refused = refusal(text, release)
    assert (refused.errno, refused.summary) == (errno, message), refused.log


ACCEPTED = [
    ("a counted loop", f"r1 = 0\nL:\nr1 += 1\nif r1 < 100 goto L\n{END}", ALL),
    (
        "a loop within a loop",
        f"r1 = 0\nA:\nr2 = 0\nB:\nr2 += 1\nif r2 < 5 goto B\nr1 += 1\nif r1 < 5 goto A\n{END}",
        ALL,
    ),
    ("bytes that were not written", f"r2 = *(u64 *)(r10 -8)\n{END}", ALL),
    (
        "an index with a bound",
        f"r2 = *(u64 *)(r1 +0)\nr2 &= 15\nr1 = map[fd:0][0]+0\nr1 += r2\nr2 = *(u8 *)(r1 +0)\n{END}",
        ALL,
    ),
    *(
        (
            f"an index of 32 bits after {operation}",
            f"r2 = *(u64 *)(r1 +0)\nr3 = *(u64 *)(r1 +8)\n{operation}\nr1 = map[fd:0][0]+0\nr1 += r2\n{END}",
            tuple(release for release in ALL if release not in UNKNOWN_OVER_64_BITS.get(operation, ())),
        )
        for operation in (*UNKNOWN_OVER_64_BITS, "w2 += w3", "w2 -= w3", "w2 &= w3", "w2 <<= 3", "w2 s>>= 3")
    ),
    (
        "an index after a division by a number",
        f"r2 = *(u64 *)(r1 +0)\nw2 %= 8\nr1 = map[fd:0][0]+0\nr1 += r2\nr2 = *(u8 *)(r1 +8)\n{END}",
        ("7.2",),
    ),
    (
        "an index that was compared",
        f"r2 = *(u64 *)(r1 +0)\nif r2 > 8 goto L\nr1 = map[fd:0][0]+0\nr1 += r2\nr2 = *(u64 *)(r1 +0)\nL:\n{END}",
        ALL,
    ),
    (
        "a copy was compared",
        "r2 = *(u64 *)(r1 +0)\nr3 = r2\nif r3 > 8 goto L\nr1 = map[fd:0][0]+0\nr1 += r2\nr2 = *(u64 *)(r1 +0)\nL:\n"
        + END,
        ALL,
    ),
    (
        "a pointer was spilled and filled",
        f"r2 = map[fd:0][0]+0\n*(u64 *)(r10 -8) = r2\nr3 = *(u64 *)(r10 -8)\nr4 = *(u64 *)(r3 +8)\n{END}",
        ALL,
    ),
    (
        "a callee's argument on its caller's stack",
        f"r1 = r10\nr1 += -8\ncall f\n{END}\nf:\n*(u64 *)(r1 +0) = 7\n{END}",
        ALL,
    ),
    ("dead code behind a known number", f"r1 = 0\nif r1 == 0 goto L\nr0 = r9\nL:\n{END}", ALL),
    (
        "a constant of a frozen map is known",
        f"r1 = map[fd:2][0]+0\nr2 = *(u8 *)(r1 +1)\nif r2 == 1 goto L\nr0 = r9\nL:\n{END}",
        ALL,
    ),
    ("may_goto ends any loop", f"r1 = 0\nL:\nr1 += 1\nmay_goto M\ngoto L\nM:\n{END}", ("6.12", "7.2")),
    ("sign extension", f"r2 = *(u64 *)(r1 +0)\nr2 = (s8)r2\nr3 = *(s8 *)(r10 -8)\n{END}", ("6.12", "7.2")),
    ("a jump of 32 bits", f"gotol L\nL:\n{END}", ALL),
    ("the difference of pointers", f"r2 = r10\nr2 -= r1\n{END}", ALL),
]


@pytest.mark.parametrize(
    ("text", "release"),
    [pytest.param(row[1], release, id=f"{row[0]} ({release})") for row in ACCEPTED for release in row[2]],
)
def test_accepted(text, release):
    check(text, release)


def _nested(depth):
    lines = [f"call f1\n{END}"]
    lines += [f"f{n}:\ncall f{n + 1}\n{END}" for n in range(1, depth)]
    return "\n".join([*lines, f"f{depth}:\n{END}"])


@pytest.mark.parametrize(("release", "deepest"), [("6.1", 7), ("6.12", 7), ("7.2", 15)])
def test_calls_nest_as_deep_as_a_release_has_frames(release, deepest):
    check(_nested(deepest), release)
    assert refusal(_nested(deepest + 1), release).errno == E2BIG


def test_frames_of_a_chain_of_calls_share_512_bytes_unless_each_has_its_own():
    text = f"*(u64 *)(r10 -264) = 0\ncall f\n{END}\nf:\n*(u64 *)(r10 -256) = 0\n{END}"
    assert refusal(text, "6.1").summary == "combined stack size of 2 calls is 544. Too large"
    assert refusal(text, "6.12").summary == "combined stack size of 2 calls is 528. Too large"
    assert [function.uses_private_stack for function in check(text, "7.2").subprogs] == [True, True]


def test_a_second_slot_is_checked_when_bytes_are_read():
    whole = bytes.fromhex("1801000001000000 0000000000000000 b700000000000000 9500000000000000".replace(" ", ""))
    assert len(decode_program(whole)) == 3
    for at in range(8, 12):
        broken = whole[:at] + b"\x01" + whole[at + 1 :]
        with pytest.raises(VerifierError, match="invalid bpf_ld_imm64 insn"):
            decode_program(broken)
    with pytest.raises(VerifierError, match="last insn is not an exit or jmp"):
        decode_program(whole[:8])


@pytest.mark.parametrize(("release", "first"), [("6.1", "R3 !read_ok"), ("7.2", "BPF_MOV uses reserved fields")])
def test_fields_are_checked_when_walked_or_before(release, first):
    insns = (*parse("r0 = r3"), Insn(0xB7, 0, 1), *parse("exit"))
    assert refusal(insns, release).summary == first


def test_what_was_seen_of_instructions_and_functions():
    verified = check(
        f"r2 = *(u64 *)(r1 +0)\nr3 = map[fd:0][0]+0\n*(u64 *)(r3 +0) = r2\n*(u8 *)(r10 -20) = 1\nr4 = 0\n"
        f"if r4 == 0 goto L\nr5 = 0\nL:\n{END}",
        "7.2",
    )
    assert [facts.seen for facts in verified.insns] == [True] * 6 + [False] + [True] * 2
    assert [verified.insns[at].pointee for at in (0, 2, 3)] == [Pointee.CTX, Pointee.OTHER, Pointee.OTHER]
    assert verified.subprogs[0].stack_depth == 24
    assert verified.maps == (MAPS[0],)


def test_loops_of_the_kernels_own_take_stack_for_their_count():
    text = f"L:\nmay_goto M\ngoto L\nM:\n{END}"
    assert [check(text, release).subprogs[0].stack_depth for release in ("6.12", "7.2")] == [8, 16]


def test_a_pointers_constant_offset_counts_against_what_is_subtracted_since_it_is_one_of_its_bounds():
    text = f"r2 = *(u64 *)(r1 +0)\nr2 &= 7\nr3 = map[fd:0][0]+8\nr3 -= r2\nr4 = *(u8 *)(r3 +0)\n{END}"
    assert refusal(text, "6.12").errno == EACCES
    check(text, "7.2")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("r2 = r10\nr2 += -520", "R2 stack pointer arithmetic goes out of range, prohibited for !root"),
        ("r2 = map[fd:0][0]+0\nr2 += 16", "R2 pointer arithmetic of map value goes out of range, prohibited for !root"),
        ("r2 = *(u64 *)(r10 -8)", "invalid read from stack off -8+0 size 8"),
        ("r2 = map[fd:0][0]+0\n*(u64 *)(r2 +0) = r10", "R10 leaks addr into map"),
        ("r0 = r10\nexit", "R0 leaks addr as return value"),
        ("L:\nr2 = 0\ngoto L", "back-edge from insn 1 to 0"),
    ],
)
def test_without_capabilities_more_is_refused(text, message):
    program = BpfProgram(
        "p", parse(f"{text}\n{END}" if "exit" not in text and "goto" not in text else text), 1, maps=MAPS
    )
    with pytest.raises(VerifierError) as caught:
        bpf_check(program, kernel_view("7.2", BTF), capabilities=Capabilities(False, False, False))
    assert caught.value.summary == message


def test_the_log_shows_what_registers_hold_and_ends_with_a_count():
    refused = refusal("r2 = r10\nr2 += -8\nr0 = r5\nexit")
    assert refused.log.splitlines()[-5:] == [
        "0: (bf) r2 = r10                      ; R1=ctx() R2=fp0 R10=fp0",
        "1: (07) r2 += -8                      ; R1=ctx() R2=fp-8 R10=fp0",
        "2: (bf) r0 = r5",
        "R5 !read_ok",
        "processed 3 insns (limit 1000000)",
    ]
