import re

import pytest

from trampoline.bpf.errors import TrampolineError
from trampoline.tools.debugger.terminal.line_mode import HERE, PROMPT, Plain

ROW = re.compile(r"^ {2} *(\d+) (\+0x[0-9a-f]+) +(\S.*)$")


def instructions(lines):
    return [match for match in map(ROW.match, lines) if match]


def test_every_instruction_is_a_line(session):
    lines = list(Plain(session).everything())
    assert lines[0] == session.title
    found = instructions(lines)
    assert [int(match[1]) for match in found] == list(range(1, session.debugger.end))
    assert lines[-1].endswith("bpf_fentry_test1(1) returned 0x2")


def test_lines_say_what_changed(session):
    text = "\n".join(Plain(session, most=8).everything())
    assert re.search(r"mov rbp, rsp +rbp=0xffffc9", text)
    assert re.search(r"call bpf_trampoline_\d+ +\[return address\]=bpf_fentry_test1\+0x9", text)
    assert re.search(r"mov qword ptr \[rbp - 0x18\], rax +\[nr_args\]=0x1$", text, re.M)


@pytest.mark.parametrize("most", [0, 1, 5])
def test_at_most_so_many(session, most):
    assert len(instructions(Plain(session, most=most).everything())) == most


def test_one_phase_has_what_runs_for_it(session):
    lines = list(Plain(session, phase="program").everything())
    text = "\n".join(lines)
    assert "<bpf_prog_fentry0>" in text
    assert "<bpf_prog_fexit1>" in text
    assert "__bpf_prog_enter" not in text
    assert {match[3].split()[0] for match in instructions(lines)} == {"program", "xor", "ret"}


def test_an_unknown_phase(session):
    with pytest.raises(TrampolineError, match="no phase 'nix'"):
        Plain(session, phase="nix")


def test_counts_agree_with_a_run_without_a_debugger(make_lab, session):
    lab = make_lab("6.12")
    for kind in ("fentry", "fexit"):
        lab.attach(lab.prog(kind, "xor eax, eax\nret"), "bpf_fentry_test1")
    count = lab.call("bpf_fentry_test1", 1).counts.instructions
    assert len(instructions(Plain(session).everything())) == count


def test_commands_and_their_answers(session):
    lines = list(Plain(session).commands(["s 2", "rs", "p $rdi", "# nothing", "", "nix", "q", "s"]))
    assert [line for line in lines if line.startswith(PROMPT)] == [
        PROMPT + text for text in ("s 2", "rs", "p $rdi", "nix", "q")
    ]
    assert len(instructions(lines)) == 2
    here = [line for line in lines if line.startswith(HERE)]
    assert [int(line.split()[1]) for line in here] == [1, 3, 2]
    assert "0x1 = 1" in lines
    assert any("no command 'nix'" in line for line in lines)


def test_operations_and_their_events(open_session):
    session = open_session(live=True, programs=("fentry",), calls=("bpf_fentry_test1(1)", "bpf_fentry_test1(2)"))
    lines = list(Plain(session).everything())
    text = "\n".join(lines)
    assert "thread 3, attach fentry0:" in lines
    assert "at lock: trampoline_mutex" in text
    assert re.search(r"\d+ ! text patched at bpf_fentry_test1\+0x4, int3: 0f -> cc", text)
    assert "thread 2, bpf_fentry_test1(2):" in lines
    assert text.count(" returned 0x") == 2
    assert text.index("attach fentry0 has ended") < text.index("thread 1, bpf_fentry_test1(1):")


def test_a_fault_ends_it(open_session):
    session = open_session("bpf_fentry_test9", programs=("fentry",), calls=("bpf_fentry_test9(1)",))
    printed = Plain(session)
    lines = list(printed.everything())
    assert printed.faulted
    assert "page fault reading 0x1" in lines[-1]
    assert lines[-2].startswith(HERE)
