"""What was executed, as text that reads the same wherever it lies."""

import re

import pytest

from emu.kernel.text.functions import AssemblyFunctions, FunctionText
from emu.machine.address_map import AddressMap
from trampoline.bpf.errors import TrampolineError
from trampoline.tools.icount.capture import PHASES, path_of_call

PROGRAM = "xor eax, eax\nret"


def attached(make_lab, kind="fexit", **options):
    lab = make_lab("6.12", **options)
    lab.attach(lab.prog(kind, PROGRAM), "bpf_fentry_test1", cookie=1 << 40)
    return lab


def path(lab):
    return path_of_call(lab, lab.call("bpf_fentry_test1", 1))


def lines_of(path):
    return [line for phase in path.phases.values() for piece in phase.pieces for line in piece.lines]


def times_of(line):
    match = re.match(r"(\d+)x ", line)
    return int(match[1]) if match else 1


@pytest.mark.parametrize("design", ["per-function", "batched", "generic", "specialised"])
def test_every_instruction_is_in_the_listing_of_its_phase(make_lab, design):
    lab = attached(make_lab, design=design)
    call = lab.call("bpf_fentry_test1", 1)
    found = path_of_call(lab, call)
    assert found.instructions == call.counts.instructions
    assert found.unbalanced_returns == call.counts.unbalanced_returns
    assert {name: phase.instructions for name, phase in found.phases.items()} == call.counts.by_phase
    assert list(found.phases) == [name for name in PHASES if name in found.phases]
    for phase in found.phases.values():
        assert sum(times_of(line) for piece in phase.pieces for line in piece.lines) == phase.instructions
        assert len({piece.name for piece in phase.pieces}) == len(phase.pieces)
    assert found.conditions == {"flavour": "6.12", "config": "voluntary", "design": design}


def test_the_site_is_listed_as_it_is_patched(make_lab):
    lines = lines_of(path(attached(make_lab)))
    assert "call bpf_trampoline of bpf_fentry_test1" in lines
    assert "call bpf_fentry_test1+0x9" in lines  # the function behind its site


def test_code_that_only_moved_is_the_same_code(make_lab):
    kaslr = AddressMap(
        text=0xFFFFFFFF9A200000,
        modules=0xFFFFFFFFC0400000,
        direct_map=0xFFFF99E500000000,
        vmalloc=0xFFFFB3B300000000,
        percpu=0xFFFF99E600000000,
        stacks=0xFFFFB3B300800000,
    )
    moved = make_lab("6.12", layout=kaslr)
    moved.kernel.slab.alloc(4096, "something else")
    moved.kernel.percpu.alloc(64, "something else")
    moved.attach(moved.prog("fexit", PROGRAM), "bpf_fentry_test1", cookie=1 << 40)
    here = attached(make_lab)
    assert here.kernel.function("bpf_fentry_test1").address != moved.kernel.function("bpf_fentry_test1").address
    assert path(here) == path(moved)


def test_no_address_of_the_guest_is_left(make_lab):
    for design in ("per-function", "specialised"):
        text = "\n".join(lines_of(path(attached(make_lab, design=design))))
        assert not re.search(r"0xffff[89a-f]\w{11}", text.replace("0xfffffffffffffff0", ""))
        assert "0x10000000000" in text or design == "specialised"  # a constant is no address: the cookie


def test_loops_and_host_calls(make_lab):
    loop = FunctionText("loop", "mov ecx, 5\nagain: dec ecx\njne again\nret", "int loop(void)")
    lab = make_lab("6.12", functions=(AssemblyFunctions((loop,)),))
    found = path_of_call(lab, lab.call("loop"))
    (piece,) = [piece for piece in found.phases["other"].pieces if piece.name == "loop"]
    assert piece.lines[2:] == ("mov ecx, 5", "5x dec ecx", "5x jne again", "ret")
    lab.attach(lab.prog("fentry", lambda ctx: 0, name="python"), "loop")
    again = path_of_call(lab, lab.call("loop"))
    assert again.instructions == sum(phase.instructions for phase in again.phases.values())
    assert "?" not in lines_of(again)


def test_what_was_not_counted(make_lab):
    lab = make_lab("6.12", counting="off")
    with pytest.raises(TrampolineError, match="not counted"):
        path(lab)
