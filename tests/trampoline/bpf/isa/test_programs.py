"""What random programs promise: they are programs, they end, and nothing depends on where they run."""

from random import Random

import pytest
from hypothesis import given, settings
from kernel_releases import RELEASES

from bpf_interpreter import Interpreter, Memory
from bpf_programs import CONTEXT_SIZE, HELPERS, programs, random_program
from trampoline.bpf.isa import fault, places
from trampoline.bpf.isa.forms import LOADABLE
from trampoline.bpf.isa.insn import GOTOX, MAY_GOTO, Cls, Mode
from trampoline.bpf.standalone.functions import functions_of

SETS = [found.isa for found in RELEASES.values()]


def outcome(example, context, stack):
    memory = Memory({context: example.context})
    interpreter = Interpreter(example.insns, memory, stack_top=stack, helpers=HELPERS, max_steps=100_000)
    return interpreter.run(context, CONTEXT_SIZE), bytes(memory.regions[context])


@pytest.mark.parametrize("instructions", SETS)
def test_programs_end_within_their_memory_and_depend_on_no_address(instructions):
    for seed in range(60):
        example = random_program(Random(seed), instructions)
        assert not [insn for insn in example.insns if fault(insn) or not instructions.has(insn)]
        assert {start for start, _ in example.functions} >= {each.start for each in functions_of(example.insns)}
        low, high = outcome(example, 0x1000, 0x7FFF0000), outcome(example, 0xFFFF888000001008, 0xFFFFC90000A00000)
        assert low == high, seed


def test_programs_have_every_instruction_that_needs_no_kernel():
    drawn = {insn.code for seed in range(300) for insn in random_program(Random(seed)).insns}
    missing = {code for code in LOADABLE - drawn if code not in (MAY_GOTO, GOTOX)}
    assert missing == {Cls.LD | mode | size for mode in (Mode.ABS, Mode.IND) for size in (0x00, 0x08, 0x10)}


@given(programs())
@settings(max_examples=30)
def test_hypothesis_draws_programs(example):
    assert places(example.insns)[-1] >= 10
    assert outcome(example, 0x1000, 0x7FFF0000)
