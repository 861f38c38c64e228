"""Random programs: every method counts what single-stepping sees."""

import itertools
from collections import Counter

from capstone import CS_ARCH_X86, CS_MODE_64, Cs
from hypothesis import assume, given, settings
from hypothesis import strategies as st

FUNCTIONS = 4
MAX_STEPS = 4000
STRAIGHT = (
    "nop",
    "inc eax",
    "mov rax, rdi",
    "push rax; pop rdx",
    "lea rax, [rsp + 8]",
    "mov [rsp - 0x40], rax",
    "xchg [rsp - 0x48], rdx",
    "lock inc dword ptr [rsp - 0x50]",
    "pause",
    "push rbx; cpuid; pop rbx",
    "int3",
    "add r15d, 0x9e37",
    "; ".join(["nop"] * 370),
)
REPS = ("rep stosb", "rep movsq", "rep lodsd", "repe cmpsb", "repne scasb")
FAULTS = ("mov rax, [0x10]", "ud2", "push qword ptr [0]", "mov edi, 0; mov ecx, 3; rep stosb", "mov eax, 0x10; jmp rax")

straight = st.sampled_from(STRAIGHT).map(lambda text: ("straight", text))
leaf = st.one_of(
    straight,
    straight,
    st.tuples(st.just("rep"), st.sampled_from(REPS), st.sampled_from([0, 1, 2, 5])),
    st.tuples(st.just("spin"), st.sampled_from(["loop {0}", "dec ecx; jnz {0}", "nop; loop {0}"]), st.integers(1, 4)),
    st.tuples(st.just("call"), st.integers(0, FUNCTIONS - 1)),
    st.sampled_from([("drop",), ("push-ret",), ("int3-jump",), ("jump",), ("early-ret",)]),
)
item = st.recursive(
    leaf,
    lambda inner: st.one_of(
        st.tuples(st.just("loop"), st.integers(1, 3), st.lists(inner, max_size=3)),
        st.tuples(st.just("skip"), st.sampled_from([1, 2, 4]), st.lists(inner, max_size=3)),
    ),
    max_leaves=5,
)
fault = st.sampled_from(FAULTS).map(lambda text: ("straight", text))
bodies = st.lists(st.lists(item, min_size=1, max_size=6), min_size=FUNCTIONS, max_size=FUNCTIONS)
programs = st.tuples(bodies, st.none() | st.tuples(st.integers(0, FUNCTIONS - 1), st.integers(0, 6), fault))
limits = st.lists(st.integers(1, 30), min_size=1, max_size=3)


def text_of(items, function, labels):
    for kind, *parts in items:
        label, other = f"L{next(labels)}", f"L{next(labels)}"
        if kind == "straight":
            yield parts[0]
        elif kind == "rep":
            yield f"lea rsi, [rsp - 0x800]; lea rdi, [rsp - 0x700]; mov ecx, {parts[1]}; {parts[0]}"
        elif kind == "spin":
            yield f"mov ecx, {parts[1]}; {label}: {parts[0].format(label)}"
        elif kind == "call":
            # Functions call those behind them only, so that every program ends.
            yield f"call f{parts[0]}" if parts[0] > function else "nop"
        elif kind == "drop":
            yield f"call {label}; {label}: add rsp, 8"
        elif kind == "push-ret":
            yield f"lea rax, [rip + {label}]; push rax; ret; {label}: nop"
        elif kind == "int3-jump":
            yield "int3; ud2"
        elif kind == "jump":
            yield f"jmp {label}; ud2; {label}: nop"
        elif kind == "early-ret":
            yield f"call {label}; jmp {other}; {label}: ret; {other}: nop"
        elif kind == "loop":
            yield f"push rbx; mov ebx, {parts[0]}; {label}: nop"
            yield from text_of(parts[1], function, labels)
            yield f"dec ebx; jnz {label}; pop rbx"
        else:
            yield f"add r15d, 0x9e37; test r15b, {parts[0]}; jz {label}; nop"
            yield from text_of(parts[1], function, labels)
            yield f"{label}: nop"


def source_of(program):
    functions, faulting = program
    functions = [list(items) for items in functions]
    if faulting is not None:
        function, at, what = faulting
        functions[function].insert(at, what)
    labels = itertools.count()
    lines = ["call f0; jmp out"]
    for number, items in enumerate(functions):
        lines += [f"f{number}: nop", *text_of(items, number, labels), "ret"]
    return "; ".join([*lines, "out: nop"])


def load(engine, source):
    it = engine(source)
    # An int3 before an ud2 stands for a jump over it.
    code = it.read_code(it.text, it.end - it.text)
    at = code.find(b"\xcc\x0f\x0b")
    while at >= 0:
        it.redirect[it.text + at + 1] = (it.text + at + 3, None)
        at = code.find(b"\xcc\x0f\x0b", at + 1)
    return it


def by_single_steps(it, depth):
    """Counts and unbalanced returns, from nothing but what each step did."""
    capstone = Cs(CS_ARCH_X86, CS_MODE_64)
    counts = Counter()
    returns = []
    unbalanced = 0
    rip = it.text
    for _ in range(MAX_STEPS):
        _, size, mnemonic, _ = next(capstone.disasm_lite(it.read_code(rip, 15), rip))
        way_out = it.run(start=rip, count=1)
        if way_out.rip == rip and (way_out.faulted or mnemonic.startswith("rep")):
            if way_out.faulted:
                return counts, unbalanced
            continue
        counts[rip] += 1
        if mnemonic == "call":
            returns = [*returns, rip + size][-depth:]
        elif mnemonic == "ret":
            unbalanced += (returns.pop() if returns else None) != way_out.rip
        rip = way_out.rip
        if way_out.faulted or rip == it.end:
            return counts, unbalanced
    return None


@settings(max_examples=50)
@given(programs, limits, st.sampled_from([2, 1024]))
def test_all_methods_count_what_single_stepping_sees(engine, program, limits, depth):
    source = source_of(program)
    expected = by_single_steps(load(engine, source), depth)
    assume(expected is not None)
    counts, unbalanced = expected
    for method in ("native", "portable", "each"):
        it = load(engine, source)
        counter = it.counter(method, return_stack_depth=depth, engine_limits=True)
        it.run(counter)
        assert counter.counts() == counts
        assert counter.instructions == counts.total()
        assert counter.unbalanced_returns == unbalanced

        counter.remove()
        it = load(engine, source)
        counter = it.counter(method, return_stack_depth=depth, engine_limits=True)
        rip = it.text
        for limit in itertools.cycle(limits):
            way_out = it.run(counter, start=rip, count=limit)
            rip = way_out.rip
            if way_out.faulted or rip == it.end:
                break
        assert counter.counts() == counts
        assert counter.unbalanced_returns == unbalanced


@settings(max_examples=25)
@given(programs, st.lists(st.tuples(st.integers(0, 400), st.integers(1, 64)), max_size=4), st.integers(1, 12))
def test_forgetting_blocks_at_any_time_changes_nothing(engine, program, forgotten, full):
    source = source_of(program)
    it = load(engine, source)
    counters = [it.counter(method) for method in ("native", "portable", "each")]
    counters[0]._full = counters[2]._full = full
    for at, size in [*forgotten, (0, 1)]:
        it.registers(rsp=it.stack, r15=0)
        it.run(*counters)
        for counter in counters:
            counter.invalidate(it.text + at, it.text + at + size)
    plain = load(engine, source)
    reference = plain.counter("portable")
    for _ in [*forgotten, 0]:
        plain.registers(rsp=plain.stack, r15=0)
        plain.run(reference)
    for counter in counters:
        assert counter.counts() == reference.counts()
        assert counter.unbalanced_returns == reference.unbalanced_returns
