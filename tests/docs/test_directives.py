"""What the drawings of the documentation show is what ran."""

from xml.etree import ElementTree

import pytest

from directives import calls, frames
from directives.of_design import ARGUMENTS, TRACED, Attached

PER_FUNCTION = Attached("per-function", "fexit")
TRAMPLAB = Attached("specialised", "fexit", "7.2", "lazy", multi=True)
SEED = Attached("tracing-multi-v2-fixed", "fexit", multi=True)


def words(svg):
    return [element.text for element in ElementTree.fromstring(svg).iter("text")]


@pytest.mark.parametrize(
    ("attached", "functions"),
    [
        (PER_FUNCTION, {"trampoline", "__bpf_prog_enter_recur", "program"}),
        (TRAMPLAB, {"thunk", "caller's image", "program"}),
        (SEED, {"bpf_global_caller_2", "bpf_global_caller_2_run"}),
    ],
)
def test_a_drawn_call_has_the_counted_instructions(attached, functions):
    run = calls.run_call(attached)
    with attached.lab() as lab:
        assert lab.call(TRACED, *ARGUMENTS).counts.instructions == run.instructions
    assert functions <= {stretch.name for stretch in run.stretches}
    assert run.stretches[-1].left_by == "ret"
    drawn = words(calls.draw(run, "a <title>"))
    assert sum(int(text) for text in drawn if text.isdigit()) == run.instructions


@pytest.mark.parametrize("attached", [PER_FUNCTION, TRAMPLAB, SEED])
def test_a_drawn_stack_has_what_the_program_sees(attached):
    found = frames.frames_at_program(attached)
    slots = {slot.name: slot for frame in found for slot in frame.slots}
    assert (slots["arg1"].value, slots["arg2"].value, slots["return value"].value) == (2, 3, 5)
    assert slots["ip"].words == TRACED
    addresses = [slot.address for frame in found for slot in frame.slots]
    assert addresses == sorted(addresses, reverse=True)
    assert {"arg1", "arg2", "nr_args", "run_ctx.cookie"} <= set(words(frames.draw(found, "a title")))
