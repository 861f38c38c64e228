"""Calls of helpers: programs as text, and what kernels say to them."""

from errno import EACCES, EINVAL

import pytest

from mini_kernel import answer, verify

ENOTSUPP = 524
STACK = "*(u64 *)(r10 -8) = 0 / *(u64 *)(r10 -16) = 0 / "
KEY = "r2 = r10 / r2 += -8 / "
LOOKUP = STACK + "r1 = map[fd:1] ll / " + KEY + "call 1 / "
RESERVE = "r1 = map[fd:2] ll / r2 = 16 / r3 = 0 / call 131 / "
DONE = "r0 = 0 / exit"

ANY = [
    # Which helpers there are, and for whom
    ("call 999 / exit", "fentry", EINVAL, "invalid func unknown#999"),
    ("call -1 / exit", "fentry", EINVAL, "invalid func unknown#-1"),
    ("r1 = 0 / call 58 / exit", "kprobe", EINVAL, "bpf_override_return#58"),
    ("call 184 / exit", "tp_btf", EINVAL, "bpf_get_func_ret#184"),
    ("r1 = 1 / call 5 / r0 = 0 / exit", "socket", 0, ""),
    ("r2 = 0 / r3 = 0 / call 173 / r0 = 0 / exit", "iter", ENOTSUPP, "supported only for fentry/fexit"),
    ("call 173 / r0 = 0 / exit", "raw_tp", ENOTSUPP, "not supported for program type 17"),
    ("call 173 / r0 = 0 / exit", "kprobe", 0, ""),
    ("call 14 / r0 = 0 / exit", "lsm", 0, ""),
    # What cannot be called from where the program is
    ("r1 = 0 / r2 = 0 / r3 = 0 / call 147 / " + DONE, "fentry", EINVAL, "helper call is not allowed in probe"),
    # Kinds of arguments
    ("r1 = 5 / r2 = r10 / call 1 / " + DONE, "fentry", EACCES, "R1 type=scalar expected=map_ptr"),
    ("r1 = r10 / r2 = r10 / call 1 / " + DONE, "fentry", EACCES, "R1 type=fp expected=map_ptr"),
    ("r1 = map[fd:1] ll / r2 = 0 / call 1 / " + DONE, "fentry", EACCES, "R2 type=scalar expected=fp, pkt, pkt_meta"),
    (STACK + "r1 = map[fd:1] ll / r2 = r10 / r2 += -4 / call 1 / " + DONE, "fentry", EINVAL, "R2 off=-4 size=8"),
    ("r1 = 7 / call 185 / " + DONE, "fentry", EACCES, "R1 type=scalar expected=ctx"),
    ("r2 = 0 / call 158 / r1 = r0 / call 175 / " + DONE, "fentry", -1, "the result of bpf_task_pt_regs"),
    ("r2 = r1 / r1 = 1 / r3 = r10 / call 183 / " + DONE, "fentry", EACCES, "R1 type=scalar expected=ctx"),
    ("r2 = 0 / r3 = r10 / r3 += -12 / call 183 / " + DONE, "fentry", EACCES, "misaligned stack access"),
    (STACK + "r2 = 0 / r3 = r10 / r3 += -8 / call 183 / " + DONE, "fentry", 0, ""),
    # Sizes
    ("r1 = r10 / r1 += -8 / r2 = 8 / r3 = 0 / call 113 / " + DONE, "fentry", 0, ""),
    ("r1 = r10 / r1 += -8 / r2 = 9 / r3 = 0 / call 113 / " + DONE, "fentry", EINVAL, "R1 off=-8 size=9"),
    ("r1 = r10 / r1 += -8 / r2 = -1 / r3 = 0 / call 113 / " + DONE, "fentry", EACCES, "R2 min value is negative"),
    ("r3 = r1 / r1 = r10 / r2 = r10 / call 113 / " + DONE, "fentry", EACCES, "R2 type=fp expected=scalar"),
    ("r1 = r10 / r1 += -8 / r2 = 0 / call 16 / " + DONE, "fentry", EACCES, "invalid zero-sized read"),
    # Maps and helpers that go together
    (STACK + "r1 = map[fd:5] ll / " + KEY + "call 1 / " + DONE, "fentry", EINVAL, "cannot pass map_type 7 into func"),
    ("r2 = map[fd:0] ll / r3 = 0 / call 27 / " + DONE, "fentry", EINVAL, "cannot pass map_type 2 into func"),
    ("r2 = map[fd:3] ll / r3 = 0 / call 12 / " + DONE, "fentry", 0, ""),
    ("r2 = map[fd:0] ll / r3 = 0 / call 12 / " + DONE, "fentry", EINVAL, ""),
    (STACK + "r1 = map[fd:4] ll / " + KEY + "r3 = 0 / call 87 / " + DONE, "fentry", 0, ""),
    ("r1 = map[fd:7] ll / r2 = r10 / r2 += -8 / call 1 / " + DONE, "fentry", EACCES, "invalid zero-sized read"),
    (STACK + "r1 = map[fd:6] ll / " + KEY + "r3 = r2 / r4 = 0 / call 2 / " + DONE, "fentry", EACCES, "forbidden"),
    # What is returned
    (LOOKUP + "r0 = *(u64 *)(r0 +0) / " + DONE, "fentry", EACCES, "R0 invalid mem access 'map_value_or_null'"),
    (LOOKUP + "if r0 == 0 goto +1 / r1 = *(u64 *)(r0 +8) / " + DONE, "fentry", 0, ""),
    (
        LOOKUP + "if r0 == 0 goto +1 / r1 = *(u64 *)(r0 +12) / " + DONE,
        "fentry",
        EACCES,
        "R0 min value is outside of the",
    ),
    ("call 5 / r0 = r1 / exit", "kprobe", EACCES, "R1 !read_ok"),
    # References
    (RESERVE + "if r0 == 0 goto +3 / r1 = r0 / r2 = 0 / call 132 / " + DONE, "fentry", 0, ""),
    (RESERVE + DONE, "fentry", EINVAL, ""),
    (RESERVE + "if r0 == 0 goto +2 / r1 = *(u64 *)(r0 +16) / goto +0 / " + DONE, "fentry", EACCES, "outside of the"),
    (RESERVE + "r1 = r0 / r2 = 0 / call 132 / " + DONE, "fentry", EACCES, "_mem_or_null expected="),
    (LOOKUP + "if r0 == 0 goto +3 / r1 = r0 / r2 = 0 / call 132 / " + DONE, "fentry", EACCES, "R1 type=map_value"),
    ("r1 = map[fd:2] ll / r2 = 8 / r3 = r10 / r2 = *(u32 *)(r10 -4) / call 131 / " + DONE, "fentry", EACCES, ""),
    # Texts and formats
    (
        "*(u64 *)(r10 -8) = 0 / r1 = r10 / r1 += -8 / r2 = 8 / r3 = map[fd:6][0]+0 ll / call 182 / " + DONE,
        "fentry",
        0,
        "",
    ),
    (
        "*(u64 *)(r10 -8) = 0 / r1 = r10 / r1 += -8 / r2 = 8 / r3 = r1 / call 182 / " + DONE,
        "fentry",
        EACCES,
        "R3 type=fp",
    ),
    (
        "r1 = 0 / r2 = 0 / r3 = map[fd:6][0]+0 ll / r4 = 0 / r5 = 0 / call 165 / " + DONE,
        "fentry",
        EINVAL,
        "Invalid format string",
    ),
    (
        STACK + "r1 = 0 / r2 = 0 / r3 = map[fd:6][0]+0 ll / r4 = r10 / r4 += -16 / r5 = 16 / call 165 / " + DONE,
        "fentry",
        0,
        "",
    ),
]


@pytest.mark.parametrize("release", ["6.1", "6.12", "7.2"])
@pytest.mark.parametrize(("text", "kind", "errno", "message"), ANY)
def test_kernels_say_of_a_call(text, kind, errno, message, release):
    got, said = answer(text, kind, release)
    assert (got, message in said) == (errno, True), said


BY_RELEASE = [
    ("call 184 / exit", "tp_btf", "6.1", EINVAL, "unknown func bpf_get_func_ret#184"),
    ("call 184 / exit", "tp_btf", "7.2", EINVAL, "program of this type cannot use helper bpf_get_func_ret#184"),
    ("call 185 / r0 = 0 / exit", "tp_btf", "6.12", EINVAL, "cannot use helper"),
    ("call 185 / r0 = 0 / exit", "tp_btf", "7.2", 0, ""),
    ("call 174 / r0 = 0 / exit", "tp_btf", "6.1", EINVAL, "unknown func"),
    ("call 174 / r0 = 0 / exit", "tp_btf", "6.12", 0, ""),
    ("call 210 / r0 = 0 / exit", "fentry", "6.1", EINVAL, "invalid func unknown#210"),
    ("r1 = 1 / call 210 / r0 = 0 / exit", "fentry", "6.12", EACCES, "R1 type=scalar expected=map_ptr"),
    ("r1 = 0 / call 46 / r0 = 0 / exit", "fentry", "6.1", EACCES, "R1 type=scalar expected=sock_common"),
    ("r1 = 0 / call 46 / r0 = 0 / exit", "fentry", "6.12", 0, ""),
    ("r2 = 8 / r1 = 0 / call 1 / exit", "fentry", "6.1", EACCES, "R1 type=scalar expected=map_ptr"),
    (RESERVE + "r1 = r0 / call 132 / exit", "fentry", "6.1", EACCES, "R1 type=alloc_mem_or_null expected=alloc_mem"),
    (RESERVE + "r1 = r0 / call 132 / exit", "fentry", "7.2", EACCES, "expected=ringbuf_mem"),
    # A trusted pointer is memory that helpers may read, since 6.2.
    ("r2 = *(u64 *)(r1 +0) / r1 = map[fd:0] ll / call 1 / exit", "fentry", "6.12", EACCES, "R2 type=ptr_ expected="),
    (
        "r2 = *(u64 *)(r1 +0) / r1 = map[fd:0] ll / call 1 / exit",
        "lsm",
        "6.12",
        EACCES,
        "bpf_map_lookup_elem() may write",
    ),
    ("r2 = *(u64 *)(r1 +0) / r1 = map[fd:0] ll / call 1 / exit", "lsm", "6.1", EACCES, "R2 type=ptr_ expected="),
    # A known key of an array finds an element, since 6.14.
    (
        STACK + "r1 = map[fd:0] ll / " + KEY + "call 1 / r0 = *(u64 *)(r0 +0) / r0 = 0 / exit",
        "fentry",
        "6.12",
        EACCES,
        "map_value_or_null",
    ),
    (
        "*(u32 *)(r10 -8) = 7 / r1 = map[fd:0] ll / " + KEY + "call 1 / r0 = *(u64 *)(r0 +0) / r0 = 0 / exit",
        "fentry",
        "7.2",
        0,
        "",
    ),
    (
        "*(u32 *)(r10 -8) = 8 / r1 = map[fd:0] ll / " + KEY + "call 1 / r0 = *(u64 *)(r0 +0) / r0 = 0 / exit",
        "fentry",
        "7.2",
        EACCES,
        "map_value_or_null",
    ),
    (
        "r2 = map[fd:0] ll / r3 = 0 / call 12 / exit",
        "fentry",
        "6.12",
        EINVAL,
        "kernel subsystem misconfigured verifier",
    ),
    ("r2 = map[fd:0] ll / r3 = 0 / call 12 / exit", "fentry", "7.2", EINVAL, "expected prog array map for tail call"),
]


@pytest.mark.parametrize(("text", "kind", "release", "errno", "message"), BY_RELEASE)
def test_releases_differ_in_a_call(text, kind, release, errno, message):
    got, said = answer(text, kind, release)
    assert (got, message in said) == (errno, True), said


COPY = "r1 = r10 / r1 += -8 / r2 = 8 / r3 = 0 / call 148 / r0 = 0 / exit"


@pytest.mark.parametrize(
    ("release", "message"),
    [
        ("6.1", "helper call might sleep in a non-sleepable prog"),
        ("6.12", "helper call might sleep in a non-sleepable prog"),
        ("7.2", "sleepable helper bpf_copy_from_user#148 in non-sleepable prog"),
    ],
)
def test_only_sleepable_programs_call_what_sleeps(release, message):
    assert answer(COPY, "lsm", release) == (EINVAL, message)
    assert answer(COPY, "lsm", release, sleepable=True) == (0, "")


@pytest.mark.parametrize(("release", "errno"), [("6.1", EINVAL), ("6.12", EINVAL), ("7.2", EINVAL)])
def test_sleepable_programs_use_maps_that_may_be_slept_on(release, errno):
    text = "r1 = map[fd:7] ll / r0 = 0 / exit"
    assert answer(text, "lsm", release, sleepable=True)[0] == errno
    assert answer(text, "lsm", release) == (0, "")
    assert answer(text.replace("7", "1"), "lsm", release, sleepable=True) == (0, "")


@pytest.mark.parametrize(("release", "errno"), [("6.1", EINVAL), ("6.12", EINVAL), ("7.2", 0)])
def test_tries_may_be_slept_on_since_seven(release, errno):
    assert answer("r1 = map[fd:8] ll / r0 = 0 / exit", "lsm", release, sleepable=True)[0] == errno


def test_the_licence_decides_about_gpl_only_helpers():
    text = "r1 = r10 / r1 += -8 / r2 = 8 / r3 = 0 / call 113 / r0 = 0 / exit"
    refused = (EINVAL, "cannot call GPL-restricted function from non-GPL compatible program")
    assert answer(text, licence="Proprietary") == refused
    assert answer(text, licence="Dual MIT/GPL") == (0, "")
    assert answer("call 5 / r0 = 0 / exit", licence="Proprietary") == (0, "")


def test_what_a_call_uses_is_noted():
    verified = verify("r6 = r1 / call 173 / r1 = r6 / call 174 / r0 = 0 / exit")
    assert verified.uses.func_ip
    assert verified.uses.run_ctx
    assert not verified.uses.arg_cnt
    assert verify("call 185 / r0 = 0 / exit").uses.arg_cnt


def test_the_map_and_the_constant_key_of_a_tail_call_are_noted():
    verified = verify("r2 = map[fd:3] ll / r3 = 2 / call 12 / r0 = 0 / exit")
    fact = verified.insns[2]
    assert (fact.map.name, fact.map_key) == ("progs", 2)
    verified = verify("r2 = map[fd:3] ll / r3 = 9 / call 12 / r0 = 0 / exit")
    assert verified.insns[2].map_key is None
