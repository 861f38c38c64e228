"""What programs become between verification and compiling: text in, text out."""

import re
from dataclasses import replace

import pytest
from kernel_releases import RELEASES as ALL_RELEASES

from trampoline.bpf.isa import format_program, parse, places
from trampoline.bpf.isa.insn import CALL, Imm64, Insn
from trampoline.bpf.program import BpfProgram, MapSpec
from trampoline.bpf.rewrite.environment import Environment
from trampoline.bpf.rewrite.errors import RewriteError
from trampoline.bpf.rewrite.rewrite import rewrite
from trampoline.bpf.rewrite.skb_context import SkbLayout
from trampoline.bpf.uapi import AttachType, MapType, ProgType
from trampoline.bpf.verifier.state.result import InsnFacts, Pointee, SubprogFacts, Verified

BASE = 0xFFFFFFFF81000000
FUNCTIONS = {
    name: BASE + 0x1000 * number
    for number, name in enumerate(
        (
            "bpf_ktime_get_ns",
            "__htab_map_lookup_elem",
            "htab_map_update_elem",
            "percpu_array_map_lookup_elem",
            "bpf_get_smp_processor_id",
            "bpf_get_attach_cookie_tracing",
            "bpf_session_cookie",
            "arch_bpf_timed_may_goto",
            "bpf_skb_load_helper_16_no_cache",
            "bpf_throw",
            "bpf_task_storage_get_recur",
        ),
        1,
    )
}
KFUNCS = {1: "bpf_session_cookie", 2: "bpf_throw", 3: "bpf_rdonly_cast", 4: "bpf_session_is_return"}
ENV = Environment(
    BASE,
    FUNCTIONS,
    {"jiffies": 0xFFFFFFFF82A00000, "cpu_number": 0xFFFFFFFF83000010, "pcpu_hot.cpu_number": 0x3500C},
    maps=(0xFFFF888000100000, 0xFFFF888000200000),
    map_values={0: 0xFFFF888000300000},
    kfunc_name=KFUNCS.__getitem__,
)
SKB = SkbLayout(112, 128, 168, 124, 180, 156, 158, 156, 144, 148, 16, 224, 134, 48, 152, 0)
RELEASES = ("6.1", "6.12", "7.2")


def verified(
    text, *, maps=(), prog_type=ProgType.TRACING, attach=AttachType.TRACE_FENTRY, depth=0, facts=None, starts=(0,)
):
    """A program that was accepted; ``facts``: by instruction, what is said of it besides that it was seen."""
    insns = parse(text) if isinstance(text, str) else tuple(text)
    program = BpfProgram("p", insns, prog_type, attach, maps=tuple(maps))
    seen = [InsnFacts(seen=True) for _ in insns]
    for place, fields in (facts or {}).items():
        seen[place] = replace(seen[place], **fields)
    return Verified(program, seen, [SubprogFacts(start, stack_depth=depth) for start in starts])


def rewritten(text, release="7.2", env=ENV, **options):
    extra = {key: options.pop(key) for key in ("skb", "indirect_targets") if key in options}
    return rewrite(verified(text, **options), ALL_RELEASES[release].rewrite, env, **extra)


def listing(func):
    """The instructions of a function as text; labels are l1, l2, ... in the order in which they stand."""
    text = format_program(func.insns)
    for number, label in enumerate(re.findall(r"^(L\d+):", text, re.MULTILINE), 1):
        text = re.sub(rf"\b{label}\b", f"l{number}", text)
    return [line.strip() for line in text.splitlines()]


def out(text, release="7.2", env=ENV, **options):
    """The instructions that the main function becomes, without its last exit."""
    (func, *_) = rewritten(text + "\nexit", release, env, **options).funcs
    *lines, last = listing(func)
    assert last == "exit"
    return lines


def calls(name):
    return f"call {FUNCTIONS[name] - BASE}"


@pytest.mark.parametrize(
    ("text", "release", "expected"),
    [
        ("r1 /= r2", "6.1", ["if r2 != 0 goto l1", "w1 ^= w1", "goto l2", "l1:", "r1 /= r2", "l2:"]),
        ("r1 %= r2", "6.12", ["if r2 == 0 goto l1", "r1 %= r2", "l1:"]),
        ("w1 %= w2", "7.2", ["if w2 == 0 goto l1", "w1 %= w2", "goto l2", "l1:", "w1 = w1", "l2:"]),
        ("r1 /= 7", "7.2", ["r1 /= 7"]),
        ("r1 s/= -1", "7.2", ["r1 = -r1"]),
        ("w1 s%= -1", "7.2", ["w1 = 0"]),
        (
            "r1 s/= r2",
            "7.2",
            [
                "r12 = r2",
                "r12 += 1",
                "if r12 > 1 goto l2",
                "if r12 == 0 goto l1",
                "r1 = 0",
                "l1:",
                "r1 = -r1",
                "goto l3",
                "l2:",
                "r1 s/= r2",
                "l3:",
            ],
        ),
    ],
)
def test_divisions_cannot_trap(text, release, expected):
    assert out(text, release) == expected


def test_what_divisions_become_gives_the_results_of_the_rfc():
    """A small interpreter of the instructions that stand for divisions."""
    least, u64 = -(1 << 63), (1 << 64) - 1
    cases = [(7, 2), (-7, 2), (7, 0), (least, -1), (least, 1), (5, -1), (0, 0), (-1, -1)]
    for text, want in (
        (
            "r1 s/= r2",
            lambda a, b: (
                0 if b == 0 else least if (a, b) == (least, -1) else int(a / b) if abs(a) < 1 << 50 else a // b
            ),
        ),
        ("r1 s%= r2", lambda a, b: a if b == 0 else 0 if b == -1 else abs(a) % abs(b) * (-1 if a < 0 else 1)),
    ):
        (func,) = rewritten(text + "\nexit").funcs
        for a, b in cases:
            assert _run(func.insns, a & u64, b & u64) == want(a, b) & u64, (text, a, b)


def _run(insns, a, b):
    u64 = (1 << 64) - 1
    regs = {1: a, 2: b, 12: 0}
    place = 0

    def signed(value):
        return (value ^ 1 << 63) - (1 << 63)

    while insns[place].code != 0x95:
        insn = insns[place]
        place += 1
        dst, right = regs.get(insn.dst, 0), regs[insn.src] if insn.code & 8 else insn.imm & u64
        match insn.code:
            case 0xBF | 0xB7:
                regs[insn.dst] = right
            case 0xB4:
                regs[insn.dst] = right & 0xFFFFFFFF
            case 0x07:
                regs[insn.dst] = (dst + right) & u64
            case 0x87:
                regs[insn.dst] = -dst & u64
            case 0x3F | 0x9F:
                left, by = signed(dst), signed(right)
                assert by not in (0, -1) or (by == -1 and left != -(1 << 63)), "it would trap"
                quotient = abs(left) // abs(by) * (-1 if (left < 0) != (by < 0) else 1)
                regs[insn.dst] = (quotient if insn.code == 0x3F else left - quotient * by) & u64
            case 0x05:
                place += insn.off
            case 0x25:
                place += insn.off if dst > right else 0
            case 0x15:
                place += insn.off if dst == right else 0
            case _:
                raise AssertionError(f"code {insn.code:#x}")
    return regs[1]


@pytest.mark.parametrize(
    ("number", "release", "attach", "expected"),
    [
        (173, "6.1", AttachType.TRACE_FENTRY, ["r0 = *(u64 *)(r1 -16)"]),
        (185, "6.12", AttachType.TRACE_FENTRY, ["r0 = *(u64 *)(r1 -8)"]),
        (185, "7.2", AttachType.TRACE_FENTRY, ["r0 = *(u64 *)(r1 -8)", "r0 &= 255"]),
        (184, "6.1", AttachType.TRACE_FENTRY, ["r0 = -95"]),
        (
            184,
            "6.1",
            AttachType.TRACE_FEXIT,
            ["r0 = *(u64 *)(r1 -8)", "r0 <<= 3", "r0 += r1", "r3 = *(u64 *)(r0 +0)", "*(u64 *)(r2 +0) = r3", "r0 = 0"],
        ),
        (174, "7.2", AttachType.TRACE_FENTRY, [calls("bpf_get_attach_cookie_tracing")]),
        (5, "6.1", AttachType.TRACE_FENTRY, [calls("bpf_ktime_get_ns")]),
        (118, "6.1", AttachType.TRACE_FENTRY, ["r0 = 0xffffffff82a00000 ll", "r0 = *(u64 *)(r0 +0)"]),
        (8, "6.1", AttachType.TRACE_FENTRY, [calls("bpf_get_smp_processor_id")]),
        (8, "6.12", AttachType.TRACE_FENTRY, ["w0 = 217100", "r0 = &(void __percpu *)(r0)", "w0 = *(u32 *)(r0 +0)"]),
        (
            8, "7.2", AttachType.TRACE_FENTRY,
            ["r0 = -2097151984", "r0 = &(void __percpu *)(r0)", "w0 = *(u32 *)(r0 +0)"],
        ),
        (156, "6.12", AttachType.TRACE_FENTRY, ["r5 = 2080", calls("bpf_task_storage_get_recur")]),
    ],
)
def test_helpers_by_release(number, release, attach, expected):
    assert out(f"call {number}", release, attach=attach) == expected


def test_session_kfuncs_are_inlined_in_sessions_only():
    call = "call kfunc 1"
    assert out(call, attach=AttachType.TRACE_FSESSION)[0] == "r0 = *(u64 *)(r1 -8)"
    assert out("call kfunc 4", attach=AttachType.TRACE_FSESSION) == ["r0 = *(u64 *)(r1 -8)", "r0 >>= 63", "r0 &= 1"]
    assert out(call) == [f"call kfunc {FUNCTIONS['bpf_session_cookie'] - BASE}"]
    assert out("call kfunc 3") == ["r0 = r1"]


ARRAY = MapSpec("a", MapType.ARRAY, 4, 24, 5)
HASH = MapSpec("h", MapType.HASH, 12, 8, 5)
PERCPU = MapSpec("p", MapType.PERCPU_ARRAY, 4, 8, 3)


@pytest.mark.parametrize(
    ("spec", "release", "expected"),
    [
        (
            ARRAY,
            "6.1",
            [
                "r1 += 272",
                "w0 = *(u32 *)(r2 +0)",
                "if r0 >= 5 goto l1",
                "r0 *= 24",
                "r0 += r1",
                "goto l2",
                "l1:",
                "r0 = 0",
                "l2:",
            ],
        ),
        (HASH, "7.2", [calls("__htab_map_lookup_elem"), "if r0 == 0 goto l1", "r0 += 64", "l1:"]),
        (PERCPU, "6.1", [calls("percpu_array_map_lookup_elem")]),
        (
            PERCPU,
            "7.2",
            [
                "r1 += 304",
                "w0 = *(u32 *)(r2 +0)",
                "if r0 >= 3 goto l1",
                "r0 <<= 3",
                "r0 += r1",
                "r0 = *(u64 *)(r0 +0)",
                "r0 = &(void __percpu *)(r0)",
                "goto l2",
                "l1:",
                "r0 = 0",
                "l2:",
            ],
        ),
    ],
)
def test_lookups_are_inlined_where_the_map_is_known(spec, release, expected):
    assert out("call 1", release, maps=(spec,), facts={0: {"map": spec}}) == expected


def test_other_map_helpers_call_the_maps_own_functions():
    assert out("call 2", maps=(HASH,), facts={0: {"map": HASH}}) == [calls("htab_map_update_elem")]
    with pytest.raises(RewriteError, match="no function bpf_map_update_elem is known"):
        out("call 2", maps=(HASH,))


def test_maps_become_addresses():
    assert out("r1 = map[fd:1] ll\nr2 = map[fd:0][0]+8 ll") == [
        "r1 = 0xffff888000200000 ll",
        "r2 = 0xffff888000300008 ll",
    ]
    with pytest.raises(RewriteError, match="the address of map 7 is not known"):
        out("r1 = map[fd:7] ll")


def test_programs_of_several_functions_keep_what_their_addresses_were():
    insns = [Insn(0x18, 1, Imm64.MAP_FD), Insn(CALL, src=1, imm=1), Insn(0x95), Insn(0xB7), Insn(0x95)]
    program = rewritten(insns, starts=(0, 4))
    assert program.funcs[0].insns[0] == Insn(0x18, 1, Imm64.MAP_FD, 0, ENV.maps[0])
    main, called = program.link([BASE + 0x100, BASE + 0x200])
    assert main.insns[1] == Insn(CALL, src=1, off=1, imm=0x200)
    assert (main.index, called.index) == (0, 1)


def test_tail_calls_with_a_known_key_are_direct_unless_constants_are_blinded():
    progs = MapSpec("progs", MapType.PROG_ARRAY, 4, 4, 8)
    options = {"maps": (ARRAY, progs), "facts": {0: {"map": progs, "map_key": 3}}}
    program = rewritten("call 12\nexit", **options)
    assert program.funcs[0].insns[0].imm == 1
    assert [(call.map, call.key) for call in program.tail_calls] == [(1, 3)]
    hardened = rewritten("call 12\nexit", env=replace(ENV, hardened=True), **options)
    assert hardened.funcs[0].insns[0].imm == 0
    assert not hardened.tail_calls


def test_loads_of_memory_that_need_not_be_there_are_probed():
    text = "r2 = *(u64 *)(r1 +8)\nr3 = *(s32 *)(r2 +4)\nr4 = *(u8 *)(r2 +1)"
    facts = {0: {"pointee": Pointee.CTX}, 1: {"pointee": Pointee.BTF_ID}, 2: {"pointee": Pointee.TRUSTED}}
    codes = [insn.code for insn in rewritten(text + "\nexit", facts=facts).funcs[0].insns]
    assert codes == [0x79, 0x41, 0x71, 0x95]


def test_arena_accesses_get_their_modes():
    text = "r2 = *(u64 *)(r1 +8)\n*(u32 *)(r1 +0) = r2\nlock *(u64 *)(r1 +0) += r2"
    facts = {place: {"pointee": Pointee.ARENA} for place in range(3)}
    codes = [insn.code for insn in rewritten(text + "\nexit", facts=facts).funcs[0].insns]
    assert codes == [0xB9, 0xA3, 0xFB, 0x95]


def test_dead_code_goes_and_branches_to_it_are_decided():
    text = "if r1 == 0 goto a\nr0 = 1\ngoto b\na: r0 = 2\nb: exit"
    never = {3: {"seen": False}}
    (func,) = rewritten(text, facts=never).funcs
    assert listing(func) == ["r0 = 1", "exit"]
    always = {1: {"seen": False}, 2: {"seen": False}}
    (func,) = rewritten(text, facts=always).funcs
    assert [insn.code for insn in func.insns] == [0xB7, 0x95]
    assert func.insns[0].imm == 2


def test_functions_that_only_dead_code_calls_go_too():
    text = "if r1 == 0 goto +1\ncall pc+3\ncall pc+4\nr0 = 0\nexit\nr0 = 1\nexit\nr0 = 2\nexit"
    facts = {1: {"seen": False}, 5: {"seen": False}, 6: {"seen": False}}
    program = rewritten(text, facts=facts, starts=(0, 5, 7))
    assert len(program.funcs) == 2
    assert program.funcs[0].refs == ((0, 1),)
    assert program.funcs[1].insns[0].imm == 2


def test_a_jump_that_only_passes_a_removed_jump_stays_as_in_the_kernel():
    (func,) = rewritten("goto a\na: goto b\nb: exit").funcs
    assert [insn.code for insn in func.insns] == [0x95]
    (func,) = rewritten("goto b\na: goto b\nb: exit").funcs
    assert [(insn.code, insn.off) for insn in func.insns] == [(0x05, 0), (0x95, 0)]


def test_may_goto_is_bounded_by_count_or_by_time():
    text = "l: may_goto e\nr1 += 1\ngoto l\ne: exit"
    (func,) = rewritten(text, "6.12", depth=8).funcs
    assert func.stack_depth == 16
    assert listing(func) == [
        "*(u64 *)(r10 -16) = 8388608",
        "l1:",
        "r11 = *(u64 *)(r10 -16)",
        "if r11 == 0 goto l2",
        "r11 -= 1",
        "*(u64 *)(r10 -16) = r11",
        "r1 += 1",
        "goto l1",
        "l2:",
        "exit",
    ]
    (func,) = rewritten(text, "7.2", depth=8).funcs
    assert func.stack_depth == 24
    lines = listing(func)
    assert lines[:2] == ["*(u64 *)(r10 -24) = 65535", "*(u64 *)(r10 -16) = 0"]
    assert calls("arch_bpf_timed_may_goto") in lines
    with pytest.raises(RewriteError, match="no may_goto"):
        rewritten(text, "6.1")


def test_bpf_loop_is_inlined_around_its_callback():
    text = "r2 = 0\nr3 = 0\nr4 = 0\ncall 181\nexit\nr0 = 0\nexit"
    facts = {3: {"inlines_loop": True, "loop_callback": 1}}
    program = rewritten(text, facts=facts, depth=4, starts=(0, 5))
    main = program.funcs[0]
    assert main.stack_depth == 32
    (ref,) = main.refs
    assert ref[1] == 1
    assert main.insns[ref[0] + 2].off == -6  # back to the comparison
    assert main.insns[-1] == Insn(0x95)


def test_a_program_that_throws_gets_a_callback():
    program = rewritten("call kfunc 2\nexit")
    main, callback = program.funcs
    assert (main.exception_boundary, main.exception_cb) == (True, False)
    assert (callback.exception_boundary, callback.exception_cb) == (False, True)
    assert listing(callback) == ["r0 = r1", "exit"]


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        (0, ["w2 = *(u32 *)(r1 +112)"]),
        (4, ["w2 = *(u8 *)(r1 +128)", "w2 &= 7"]),
        (16, ["w2 = *(u16 *)(r1 +180)"]),
        (20, ["w2 = *(u32 *)(r1 +156)", "if r2 == 0 goto l1", "w2 = 1", "l1:"]),
        (40, ["r2 = *(u64 *)(r1 +16)", "if r2 == 0 goto l1", "w2 = *(u32 *)(r2 +224)", "l1:"]),
        (52, ["w2 = *(u32 *)(r1 +52)"]),
    ],
)
def test_fields_of_skb_become_the_kernels(offset, expected):
    options = {"prog_type": ProgType.SOCKET_FILTER, "attach": AttachType.NONE, "skb": SKB}
    facts = {0: {"pointee": Pointee.CTX}}
    assert out(f"w2 = *(u32 *)(r1 +{offset})", facts=facts, **options) == expected


def test_fields_that_are_not_modelled_are_refused():
    facts = {0: {"pointee": Pointee.CTX}}
    with pytest.raises(RewriteError, match="offset 76 of struct __sk_buff"):
        out("w2 = *(u32 *)(r1 +76)", facts=facts, prog_type=ProgType.SOCKET_FILTER, skb=SKB)
    with pytest.raises(RewriteError, match="program type 7 "):
        out("w2 = *(u32 *)(r1 +0)", facts=facts, prog_type=ProgType.PERF_EVENT)


def test_slots_that_jumps_by_a_register_reach_are_followed():
    text = "r1 /= r2\nr0 = 1\nr0 = 2\nexit"
    (func,) = rewritten(text, indirect_targets=(2,)).funcs
    (slot,) = func.indirect_targets
    slots = places(func.insns)
    assert func.insns[slots.index(slot)].imm == 2


@pytest.mark.parametrize(
    ("after", "extended"),
    [
        ("r1 = r0", True),
        ("w1 = w0", False),
        ("w0 += 1\nr1 = r0", False),
        ("if w0 == 1 goto l\nl: r0 += 1", True),
        ("call 5\nr1 = r0", False),
        ("*(u32 *)(r10 -8) = r0", False),
        ("*(u64 *)(r10 -8) = r0", True),
    ],
)
def test_an_exchange_of_32_bits_is_extended_where_its_upper_half_is_read(after, extended):
    (func,) = rewritten(f"w0 = cmpxchg32_32(r6 +0, w0, w1)\n{after}\nexit").funcs
    assert (func.insns[1] == Insn(0xBC, 0, 0, 0, 1)) is extended


def test_branches_on_constants_are_decided_in_new_releases():
    text = "r2 = 5\nif r2 != 5 goto l\nr1 += 1\nl: r0 = 0\nexit"
    assert [insn.code for insn in rewritten(text, "7.2").funcs[0].insns] == [0xB7, 0x07, 0xB7, 0x95]
    assert rewritten(text, "6.12").funcs[0].insns == parse(text)
    met = "r2 = 5\nif r1 == 0 goto l\nr2 = 6\nl: if r2 == 5 goto m\nr1 += 1\nm: r0 = 0\nexit"
    assert rewritten(met).funcs[0].insns == parse(met)


@pytest.mark.parametrize(
    ("text", "decided"),
    [
        ("r2 = 5\nr3 = 6\nif r2 > r3 goto l", True),
        ("r2 = -5\nif r2 == -5 goto l", False),  # more than 32 bits
        ("w2 = -5\nif w2 == -5 goto l", True),
        ("r2 = 5\nr2 += 1\nif r2 == 6 goto l", True),
        ("r2 = 5\nr2 |= 2\nif r2 == 7 goto l", False),
        ("r2 &= 0\nif r2 != 0 goto l", True),
        ("r2 = 200\nr3 = (s8)r2\nr3 &= 255\nif r3 == 200 goto l", True),
        ("r2 = 1\ncall 5\nif r2 == 1 goto l", False),
    ],
)
def test_which_constants_are_followed(text, decided):
    (func,) = rewritten(f"{text}\nr0 = 1\nl: r0 = 2\nexit").funcs
    conditions = [insn for insn in func.insns if insn.code & 7 in (5, 6) and insn.code not in (0x05, 0x85, 0x95)]
    assert decided is not bool(conditions)
