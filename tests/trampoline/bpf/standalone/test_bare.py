"""Bare programs: machine code against the interpreter, and what goes wrong."""

from random import Random

import pytest
from hypothesis import given, settings
from kernel_releases import RELEASES

from bpf_interpreter import Interpreter, Memory
from bpf_programs import HELPERS, programs, random_program
from trampoline.bpf.errors import BytecodeError, TrampolineError
from trampoline.bpf.isa import parse
from trampoline.bpf.standalone import BareMachine, ProgramFault

pytestmark = pytest.mark.slow

PROCESSORS = [("6.1", True), ("6.12", True), ("6.12", False), ("7.2", True), ("7.2", False)]
DRAWN = 250
"""Programs for each processor; many more were run once."""

CONTEXT = 0xFFFF888000001000


@pytest.fixture(scope="module")
def machines():
    """One machine for each release and processor; programs follow one another."""
    made = {(release, bmi2): BareMachine(RELEASES[release], bmi2=bmi2, helpers=HELPERS) for release, bmi2 in PROCESSORS}
    yield made
    for machine in made.values():
        machine.close()


@pytest.fixture
def machine(machines):
    return machines["7.2", True]


def meant(example):
    """What a program returns and leaves in its context, by its meaning."""
    memory = Memory({CONTEXT: example.context})
    value = Interpreter(example.insns, memory, helpers=HELPERS, max_steps=100_000).run(CONTEXT, len(example.context))
    return value, bytes(memory.regions[CONTEXT])


@pytest.mark.parametrize(("release", "bmi2"), PROCESSORS)
def test_machine_code_does_what_the_program_means(machines, release, bmi2):
    machine, instructions = machines[release, bmi2], RELEASES[release].isa
    for seed in range(DRAWN):
        example = random_program(Random(f"{release}-{seed}"), instructions)
        machine.load(example.insns, dict(example.functions))
        assert machine.run(example.context) == meant(example), f"seed {release}-{seed}"


@given(programs())
@settings(max_examples=60)
def test_machine_code_does_what_the_program_means_drawn(machines, example):
    machine = machines["7.2", True]
    machine.load(example.insns, dict(example.functions))
    assert machine.run(example.context) == meant(example)


@pytest.mark.parametrize(("release", "bmi2"), PROCESSORS)
def test_jumps_about_as_long_as_the_short_form_reaches(machines, release, bmi2):
    machine = machines[release, bmi2]
    for narrow in range(4):
        for wide in range(26, 36):
            body = "r3 += 1\n" * wide + "w3 += 1\n" * narrow  # four bytes each, and three
            text = f"""
                r0 = 0
                r1 = 3
                r3 = 0
            again:
                r1 += -1
                if r1 == 1 goto out
                {body}
                if r1 != 0 goto again
                goto end
                {body}
            out:
                if r3 == 0 goto last
                {body}
                goto again
            end:
                r0 = r3
            last:
                exit
            """
            insns = parse(text)
            machine.load(insns)
            assert machine.run()[0] == Interpreter(insns, Memory({})).run(0, 0) == 3 * (wide + narrow)


NUMBERS = (0, 1, 7, -7, -1, 1 << 31, 1 << 32, 0xFFFFFFFF, 1 << 63, (1 << 63) - 1)
DIVISIONS = [f"{r}{d} {sign}{op}= {r}{s}" for r in "rw" for sign in ("", "s") for op in "/%" for d, s in ("01", "10")]


@pytest.mark.parametrize("division", [*DIVISIONS, "r0 /= r0", "w0 s%= w0", "r0 s/= -1", "w0 s%= -1", "r0 %= -1"])
def test_divisions_that_a_processor_cannot_do(machine, division):
    for a in NUMBERS:
        for b in NUMBERS:
            text = f"r0 = {a % 2**64} ll\nr1 = {b % 2**64} ll\n{division}\nr2 = 3\nr0 *= r2\nr0 += r1\nexit"
            insns = parse(text)
            machine.load(insns)
            assert machine.run()[0] == Interpreter(insns, Memory({})).run(), text


@pytest.mark.parametrize("insn", ["r0 /= 0", "w0 /= 0", "r0 s%= 0", "w0 %= 0", "r0 <<= 65", "w0 >>= -1", "w0 s>>= 32"])
def test_constants_that_a_verifier_refuses_mean_what_the_rfc_says(machine, insn):
    insns = parse(f"r0 = 0x8877665544332211 ll\n{insn}\nexit")
    machine.load(insns)
    assert machine.run()[0] == Interpreter(insns, Memory({})).run()


def test_a_narrow_compare_and_exchange_clears_r0(machine):
    machine.load(parse("r0 = 0x500000007 ll\nr2 = 9\nw0 = cmpxchg32_32(r1 +0, w0, w2)\nexit"))
    assert machine.run(bytes((7, 0, 0, 0, 1, 1, 1, 1))) == (7, bytes((9, 0, 0, 0, 1, 1, 1, 1)))


def test_memory_is_given_by_address_and_length(machine):
    machine.load(parse("r0 = r2\nr0 <<= 8\nr3 = *(u8 *)(r1 +2)\nr0 |= r3\nexit"))
    assert machine.run(b"\x01\x02\x03") == (0x303, b"\x01\x02\x03")
    machine.load(parse("r0 = r1\nr0 |= r2\nexit"))
    assert machine.run() == (0, b"")


def test_helpers_get_five_arguments():
    machine = BareMachine(RELEASES["7.2"], helpers={7: lambda *args: sum(args), 9: lambda *args: args[4] - 1})
    machine.load(parse("r1 = 1\nr2 = 2\nr3 = 3\nr4 = 4\nr5 = -5\ncall 7\nr6 = r0\nr5 = 0\ncall 9\nr0 += r6\nexit"))
    assert machine.run()[0] == 4
    machine.close()


def test_a_function_may_call_itself_a_while(machine):
    function = "f:\nif r1 == 0 goto out\nr6 = r1\nr1 -= 1\ncall f\nr0 += r6\nexit\nout:\nr0 = 0\nexit"
    machine.load(parse(f"r1 = 9\ncall f\nexit\n{function}"))
    assert machine.run()[0] == 45


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("r3 = 0\nr0 = *(u64 *)(r3 +8)\nexit", "^slot 1: page fault reading 0x8$"),
        ("r0 = 0x5 ll\nr3 s/= r4\n*(u8 *)(r1 +8) = 1\nexit", "^slot 3: page fault writing 0xffff888000100000$"),
        ("r1 = -8\nlock *(u64 *)(r1 +0) += r1\nexit", "^slot 1: page fault reading 0xfffffffffffffff8$"),
        ("call f\nexit\nf:\nr0 = *(u8 *)(r1 +9)\nexit", "^slot 2: page fault reading 0xffff888000100001$"),
        ("r1 = 1 ll\nr1 <<= 48\nr0 = *(u8 *)(r1 +0)\nexit", "^slot 3: "),
        ("again:\nr0 = 1\ngoto again", "^slot [01]: still running after 1000 machine instructions$"),
        ("f:\ncall f\nexit", "^slot 0: page fault writing"),
        ("*(u64 *)(r10 +8) = 0\nexit", "page fault executing 0x0"),
    ],
)
def test_what_goes_wrong_is_told_with_its_slot(machine, program, message):
    machine.load(parse(program))
    with pytest.raises(ProgramFault, match=message):
        machine.run(bytes(8), max_instructions=1000)
    machine.load(parse("r0 = 3\nexit"))
    assert machine.run()[0] == 3


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("", "the program has no instructions"),
        ("r0 = 1", "slot 0: the last instruction"),
        ("r0 = 1\ncall 1\nexit", "slot 1: no helper 1"),
        ("r0 = 1 ll\nr1 = map[fd:3] ll\nexit", "slot 2: the address of a map"),
        ("r0 = *(u8 *)skb[3]\nexit", "slot 0: opcode 0x30 needs a kernel"),
        ("may_goto +0\nexit", "slot 0: opcode 0xe5 needs a kernel"),
        ("gotox r1\nexit", "slot 0: opcode 0x0d needs a kernel"),
        ("r1 = addr_space_cast(r2, 0, 1)\nexit", "slot 0: a cast between address spaces"),
        ("*(u64 *)(r11 -8) = r1\nexit", "slot 0: an argument on the stack"),
        ("call kfunc 5\nexit", "slot 0: a kernel function"),
    ],
)
def test_what_needs_a_kernel_is_refused(machine, program, message):
    with pytest.raises(BytecodeError, match=message):
        machine.load(parse(program))


def test_an_instruction_that_the_release_does_not_have_is_refused(machines):
    with pytest.raises(BytecodeError, match=r"slot 0: 6\.1 has no r0 = bswap16 r0"):
        machines["6.1", True].load(parse("r0 = bswap16 r0\nexit"))
    with pytest.raises(BytecodeError, match=r"6\.12 has no r0 = load_acquire"):
        machines["6.12", True].load(parse("r0 = load_acquire((u64 *)(r1 +0))\nexit"))


def test_too_much_memory_is_refused(machine):
    with pytest.raises(TrampolineError, match="1048577 bytes of memory, 1048576 at most"):
        machine.run(bytes((1 << 20) + 1))
