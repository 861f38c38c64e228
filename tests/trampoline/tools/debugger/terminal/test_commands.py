import re
from itertools import pairwise

import pytest

from trampoline.tools.debugger.terminal.command_table import COMMANDS, GROUPS, help_lines, perform
from trampoline.tools.debugger.terminal.styled_text import plain


def test_no_name_is_given_twice():
    names = [name for group in GROUPS for command in group.commands for name in command.names]
    assert sorted(set(names) - {"p"}) == sorted(set(COMMANDS) - {"p"})
    assert len(names) == len(set(names))


def test_every_command_stands_in_the_help_of_80_columns():
    text = [plain(line) for line in help_lines()]
    for group in GROUPS:
        for command in group.commands:
            assert any(row.startswith(f"  {command.names[0]}") and command.summary in row for row in text)
    assert max(map(len, text)) <= 80


def test_forwards_and_backwards(session, do):
    debugger = session.debugger
    do("s 20")
    assert debugger.position == 21
    there = debugger.registers()
    do("rs 7")
    assert debugger.position == 14
    do("s 7")
    assert debugger.registers() == there
    do("n")
    do("rn")
    assert debugger.registers() == there


def test_an_empty_line_repeats_a_move_and_nothing_else(session, do):
    do("s 2")
    do("")
    assert session.debugger.position == 5
    do("p $rip")
    do("")
    assert session.debugger.position == 5


def test_over_out_and_back_out(session, do):
    debugger = session.debugger
    do("until __bpf_tramp_enter")
    begin = debugger.position
    assert debugger.symbol(debugger.rip) == "__bpf_tramp_enter"
    do("finish")
    assert debugger.symbol(debugger.rip).startswith("bpf_trampoline_")
    behind = debugger.position
    do("rn")
    assert debugger.position == begin - 1
    do("n")
    assert debugger.position == behind
    do("rs")
    do("rf")
    assert debugger.position == begin - 1


def test_going_back_ends_where_the_threads_are_in_place(session, do):
    do("s 4")
    assert "at the start" in do("rs 100")
    assert session.debugger.position == session.start
    do("s 2")
    assert "at the start" in do("rc")
    assert session.debugger.position == session.start
    do("s 2")
    do("goto 0")
    assert session.debugger.position == session.start
    assert session.debugger.threads


def test_breakpoints_have_numbers_that_stay(session, do):
    assert do("break bpf_prog_fentry0") == "breakpoint 1: bpf_prog_fentry0"
    assert do("b phase exit") == "breakpoint 2: phase exit"
    assert do("b *bpf_prog_fexit1+2") == f"breakpoint 3: {session.debugger.address_of('bpf_prog_fexit1') + 2:#x}"
    assert do("b program fexit1") == "breakpoint 4: program fexit1"
    assert do("c") == "breakpoint 1: bpf_prog_fentry0"
    assert do("delete 1") == "1 deleted"
    assert do("c") == "breakpoint 2: phase exit"
    assert re.fullmatch(r"breakpoint [34]: .*", do("c").replace("phase exit", ""))
    assert do("info breakpoints").splitlines()[0] == "2   phase exit"
    do("rc")
    assert do("rc") == "at the start"
    assert do("delete") == "3 deleted"
    assert do("c") == "bpf_fentry_test1(1) returned 0x2"


def test_a_condition(session, do):
    do("break __bpf_prog_enter_recur if *($rsp + 8) == 0 && $rdi != 0")
    assert do("c").startswith("breakpoint 1: __bpf_prog_enter_recur if ")
    assert session.debugger.registers()["rdi"] != 0
    do("delete")
    first = session.debugger.registers()["rdi"]
    do(f"break __bpf_prog_enter_recur if $rdi != {first:#x}")
    do("c")
    assert session.debugger.registers()["rdi"] not in (0, first)


def test_a_condition_without_a_place(session, do):
    do("break if $rax == 1")
    assert do("c") == "breakpoint 1: when $rax == 1"
    assert session.debugger.registers()["rax"] == 1
    do("rs")
    assert session.debugger.registers()["rax"] != 1


def test_until_leaves_no_breakpoint(session, do):
    assert do("until phase program") == ""
    assert session.debugger.phase() == "program"
    assert session.debugger.breakpoints == ()
    do("u *$rip+4")
    assert session.debugger.phase() == "program"


def test_phases_one_after_the_other(session, do):
    phases = []
    while "returned" not in do("p"):
        phases.append(session.debugger.phase())
    assert phases[:5] == ["entry", "save", "origin", "enter", "program"]
    assert phases[-1] == "leave"
    assert all(one != other for one, other in pairwise(phases))


def test_a_named_phase(session, do):
    do("phase restore")
    assert session.debugger.phase() == "restore"
    assert "no phase 'nix'" in do("phase nix")


def test_what_changes_is_a_move_and_can_be_undone(session, do):
    do("s 5")
    before = session.debugger.registers()["rax"]
    assert do("set $rax = $rax + 0x29") == f"$rax = {before + 0x29:#x}"
    assert session.debugger.registers()["rax"] == before + 0x29
    do("set *($rsp) = 0x55")
    assert do("x/2x $rsp").split()[1] == f"{0x55:016x}"
    do("s")
    do("rs 2")
    assert session.debugger.registers()["rax"] == before


def test_values_and_memory(session, do):
    address = session.debugger.address_of("bpf_fentry_test1")
    assert do("p bpf_fentry_test1") == f"{address:#x} = {address - (1 << 64)}  <bpf_fentry_test1>"
    assert do("print 1 + 1") == "0x2 = 2"
    assert do("x/3i bpf_fentry_test1").splitlines()[0].strip().endswith("endbr64")
    assert len(do("x/5x $rsp").splitlines()) == 3


def test_the_call_chain(session, do):
    do("to program")
    assert [row.split()[1].split("+")[0] for row in do("bt").splitlines()] == [
        "bpf_prog_fentry0",
        "bpf_trampoline_6442450945",
        "bpf_fentry_test1",
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nix", "no command 'nix'"),
        ("reverse", "could be"),
        ("5", "is no command"),
        ("s many", "expected a number from 1"),
        ("s 0", "expected a number from 1"),
        ("s -1", "expected a number from 1"),
        ("f 3", "one word too many"),
        ("goto 10000", "no position 10000"),
        ("to nowhere", "to: no target"),
        ("until", "until: no place"),
        ("until nix", "no symbol 'nix'"),
        ("break nix", "no symbol 'nix'"),
        ("break *", "is not an expression"),
        ("break phase nix", "no phase 'nix'"),
        ("break event nix", "no event 'nix'"),
        ("break program nix", "no program 'nix'"),
        ("break phase exit if 1", "takes no condition"),
        ("break if nix == 1", "no symbol 'nix'"),
        ("watch", "watch: no address"),
        ("watch $rsp 99999", "bytes: expected a number from 1"),
        ("delete 7", "no breakpoint 7"),
        ("info", "info: no topic"),
        ("info nix", "no info about 'nix'"),
        ("print $nix", "no register $nix"),
        ("x/4q $rsp", "x shows words"),
        ("x/99999 $rsp", "how many"),
        ("x 0", "0x0"),
        ("set", "set: no assignment"),
        ("set $nix = 1", "no register"),
        ("set $rax =", "set: no assignment"),
        ("set $rax == 1", "set: no assignment"),
        ("set *0 = 1", "0x0"),
        ("thread 9", "no thread 9"),
        ("place 0", "preempt it first"),
        ("adopt 7", "no cpu 7"),
        ("grace", "grace: no kind"),
        ("help nix", "no command 'nix'"),
    ],
)
def test_what_is_refused_is_one_line_and_changes_nothing(session, do, text, says):
    do("s 3")
    before = (session.debugger.position, session.debugger.registers(), session.debugger.breakpoints)
    answer = perform(session, text)
    assert answer.is_error
    assert not answer.moved
    (line,) = answer.lines
    assert says in plain(line)
    assert (session.debugger.position, session.debugger.registers(), session.debugger.breakpoints) == before


def test_help_of_one_command_and_leaving(session, do):
    assert "stepi (s) [N]" in do("help s")
    assert perform(session, "quit").leaves
    assert perform(session, "# a remark").lines == ()


def test_a_thread_and_an_operation(open_session):
    session = open_session(programs=("fentry",), live=True, calls=("bpf_fentry_test1(1)", "bpf_fentry_test1(2)"))
    perform(session, "to patch")
    assert session.debugger.thread.kind == "operation"
    assert "is an operation" in plain(perform(session, "b").lines[0])
    for text in ("thread 2", "s", "preempt", "place 0"):
        assert not perform(session, text).is_error, text
    assert session.debugger.thread.number == 2
    assert session.debugger.thread.cpu == 0
    assert not perform(session, "adopt 1").is_error
    assert session.debugger.vcpus()[1].has_serialized
