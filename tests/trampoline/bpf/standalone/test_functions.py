"""The functions of a program, and programs whose functions are not whole."""

import pytest

from trampoline.bpf.errors import BytecodeError
from trampoline.bpf.isa import parse
from trampoline.bpf.standalone.functions import functions_of

PROGRAM = """
    r1 = 0x5 ll
    call second
    r2 = subprog[third] ll
    exit
third:
    goto third
second:
    if r1 == 0 goto out
    r1 = 0x7 ll
out:
    exit
"""


def test_functions_begin_where_they_are_called_or_named():
    insns = parse(PROGRAM)
    functions = functions_of(insns)
    assert [(function.start, function.end) for function in functions] == [(0, 6), (6, 7), (7, 11)]
    assert sum((function.insns for function in functions), ()) == insns


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("", "^the program has no instructions"),
        ("r0 = 0", "slot 0: the last instruction of a function is neither exit nor a jump"),
        ("if r1 == 0 goto -1", "slot 0: the last instruction"),
        ("call pc+1\nexit\nr0 = 0 ll", "slot 2: the last instruction"),
        ("goto +1\nexit", "slot 0: the jump to slot 2 leaves its function"),
        ("goto -2\nexit", "slot 0: the jump to slot -1 leaves"),
        ("call f\ngoto f\nf:\nexit", "slot 1: the jump to slot 2 leaves"),
        ("goto +1\nr0 = 5 ll\nexit", "slot 0: no instruction at slot 2, its target"),
        ("call pc+1\nr0 = 5 ll\nexit", "slot 0: no function at slot 2"),
        ("call pc-3\nexit", "slot 0: no function at slot -2"),
        ("call pc+1\nexit", "slot 0: no function at slot 2"),
    ],
)
def test_a_program_whose_functions_are_not_whole_is_refused(program, message):
    with pytest.raises(BytecodeError, match=message):
        functions_of(parse(program))
