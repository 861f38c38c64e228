import pytest

from emu.kernel.routines.routine import Routine
from trampoline import TrampolineError
from trampoline.lab import Lab
from trampoline.phases import PHASE_COLORS, PHASES, check_phase, check_phases, checked_routines, with_phases

TEXT = "nop\n.phase save ; .phase lunch\nout: .phase none\n"


def test_the_words_are_known_with_a_colour_each():
    assert [check_phase(phase) for phase in PHASES] == list(PHASE_COLORS)
    with pytest.raises(TrampolineError, match="no phase 'lunch'; there are entry, save"):
        check_phase("lunch")


def test_a_text_names_known_phases_only():
    assert check_phases(TEXT, "stub") is TEXT
    with pytest.raises(TrampolineError, match=r"stub, line 4: no phase 'lunch'; there are .*leave, none"):
        check_phases(TEXT + "out: .phase lunch", "stub")


def test_a_routine_names_known_phases_only():
    routines = [Routine("good", TEXT), Routine("bad", ".phase Save\n")]
    with pytest.raises(TrampolineError, match="bad, line 1: no phase 'Save'"):
        list(checked_routines(routines))


def test_a_program_names_known_phases_only():
    with Lab() as lab:
        with pytest.raises(TrampolineError, match="mine, line 1: no phase 'lunch'"):
            lab.prog("fentry", ".phase lunch\nret", name="mine")
        assert not lab.programs.loaded


def test_callees_count_for_the_phase_that_calls_them():
    marked = with_phases({name: Routine(name, "ret\n") for name in ("__bpf_prog_enter_recur", "memcpy")})
    assert marked["__bpf_prog_enter_recur"].text == ".phase enter\nret\n"
    assert marked["memcpy"].text == "ret\n"
