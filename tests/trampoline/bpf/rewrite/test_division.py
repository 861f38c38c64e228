"""Divisions that could stop the processor, in the forms that kernels' JITs were given."""

import pytest

from trampoline.bpf.isa import parse
from trampoline.bpf.rewrite.division import safe_division

REPLACED = [
    ("r3 /= r4", "if r4 != 0 goto +2\nw3 ^= w3\ngoto +1\nr3 /= r4"),
    ("w3 /= w4", "if w4 != 0 goto +2\nw3 ^= w3\ngoto +1\nw3 /= w4"),
    ("r3 %= r4", "if r4 == 0 goto +1\nr3 %= r4"),
    ("w3 %= w4", "if w4 == 0 goto +2\nw3 %= w4\ngoto +1\nw3 = w3"),
    ("r3 s/= -1", "r3 = -r3"),
    ("w3 s/= -1", "w3 = -w3"),
    ("r3 s%= -1", "w3 = 0"),
    ("w3 s%= -1", "w3 = 0"),
    (
        "r3 s/= r4",
        "r11 = r4\nr11 += 1\nif r11 > 1 goto +4\nif r11 == 0 goto +1\nr3 = 0\nr3 = -r3\ngoto +1\nr3 s/= r4",
    ),
    (
        "w3 s/= w4",
        "r11 = r4\nw11 += 1\nif w11 > 1 goto +4\nif w11 == 0 goto +1\nw3 = 0\nw3 = -w3\ngoto +1\nw3 s/= w4",
    ),
    ("r3 s%= r4", "r11 = r4\nr11 += 1\nif r11 > 1 goto +3\nif r11 == 1 goto +3\nw3 = 0\ngoto +1\nr3 s%= r4"),
    (
        "w3 s%= w4",
        "r11 = r4\nw11 += 1\nif w11 > 1 goto +3\nif w11 == 1 goto +4\nw3 = 0\ngoto +1\nw3 s%= w4\ngoto +1\nw3 = w3",
    ),
]


@pytest.mark.parametrize(("division", "replacement"), REPLACED)
def test_divisions_that_the_processor_would_fault_on_are_never_reached(division, replacement):
    (insn,) = parse(division)
    assert safe_division(insn, 11) == list(parse(replacement, rewritten=True))


@pytest.mark.parametrize("text", ["r3 /= 7", "r3 %= -1", "w3 s/= 7"])
def test_what_cannot_fault_stays(text):
    (insn,) = parse(text)
    assert safe_division(insn, 11) is None


def test_the_scratch_register_is_the_release_s():
    (insn,) = parse("r3 s/= r4")
    assert {each.dst for each in safe_division(insn, 12)} == {3, 12, 0}
