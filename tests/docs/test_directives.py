"""What the drawings of the documentation show is what ran."""

from xml.etree import ElementTree

import pytest

from directives.calls import OTHER, TRACED, draw, run_call
from trampoline.lab import Tracing


@pytest.mark.parametrize(
    ("design", "flavour", "config", "multi", "functions"),
    [
        ("per-function", "6.12", "voluntary", False, ["trampoline", "__bpf_prog_enter_recur", "program"]),
        ("tramplab", "7.2", "lazy", True, ["thunk", "caller's image", "program"]),
        ("seed-v2-repaired", "6.12", "voluntary", True, ["bpf_global_caller_2", "bpf_global_caller_2_run"]),
    ],
)
def test_a_drawn_call_has_the_counted_instructions(design, flavour, config, multi, functions):
    run = run_call(design, "fexit", flavour, config, multi=multi)
    with Tracing(flavour, config, design=design) as lab:
        prog = lab.prog("fexit_multi" if multi else "fexit", "xor eax, eax\nret", name="prog")
        if multi:
            lab.attach_multi(prog, [OTHER, TRACED], cookies=[1, 2])
        else:
            lab.attach(prog, TRACED)
        assert lab.call(TRACED, 2, 3).counts.instructions == run.instructions
    assert set(functions) <= {stretch.name for stretch in run.stretches}
    assert [stretch.left_by for stretch in run.stretches][-1] == "ret"
    drawn = ElementTree.fromstring(draw(run, "a <title>"))
    numbers = [element.text for element in drawn.iter("text") if element.text.isdigit()]
    assert sum(map(int, numbers)) == run.instructions
