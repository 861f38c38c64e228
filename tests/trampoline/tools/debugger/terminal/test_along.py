"""``tramp replay STRING --step``."""

from contextlib import closing

import pytest

from trampoline.tools.cli import main
from trampoline.tools.debugger.schedule import debugger_for_schedule
from trampoline.tools.debugger.terminal import panes
from trampoline.tools.debugger.terminal.command_table import perform
from trampoline.tools.debugger.terminal.line_mode import Plain
from trampoline.tools.debugger.terminal.schedule_cursor import Along
from trampoline.tools.debugger.terminal.session import StepperSession
from trampoline.tools.debugger.terminal.styled_text import plain

SCHEDULE = "detach-during-call/tracing-multi-v2/6.12/voluntary/-/b4c36b2"


@pytest.fixture
def session():
    with closing(debugger_for_schedule(SCHEDULE)) as debugger:
        yield StepperSession(debugger, SCHEDULE, Along(debugger))


def test_steps_follow_the_schedule(session):
    debugger = session.debugger
    assert debugger.thread.name == debugger.schedule[0].name
    end = debugger.end
    while session.along.present is not None:
        present = session.along.present
        assert debugger.thread.name == debugger.schedule[present].name
        perform(session, "s")
    assert debugger.position == debugger.end == end
    assert not session.along.is_left
    assert "page fault reading 0x52" in plain(perform(session, "s").lines[0])
    assert debugger.position == end


def test_along_and_back(session):
    debugger = session.debugger
    for number in range(1, 10):
        perform(session, "a")
        assert debugger.position == debugger.schedule[number].position
        assert session.along.present == number
    perform(session, "ra 4")
    assert session.along.present == 5
    perform(session, "a 100")
    assert session.along.present is None
    rows = [plain(row.spans) for row in panes.schedule(session.look()).rows]
    assert rows[-1].startswith("=> page fault")
    assert len(rows) == len(debugger.schedule) + 1
    perform(session, "rs")
    assert sum(plain(row.spans).startswith("=>") for row in panes.schedule(session.look()).rows) == 1


def test_another_way_leaves_the_schedule(session):
    perform(session, "a 39")
    perform(session, "thread 2")
    assert "returned 0x2a" in plain(perform(session, "c").lines[0])
    assert session.along.is_left
    answer = perform(session, "a")
    assert answer.is_error
    assert "has left the schedule" in plain(answer.lines[0])
    assert "left" in plain(panes.schedule(session.look()).rows[0].spans)
    assert not perform(session, "rs").is_error


def test_every_step_is_a_line(session):
    printed = Plain(session)
    lines = list(printed.everything())
    assert printed.faulted
    steps = [line for line in lines if " step " in line]
    assert len(steps) == len(session.debugger.schedule) - 1  # the last faults where it begins
    assert [line.split()[3].rstrip(":") for line in steps[:6]] == ["b", "b", "b", "b", "c", "c"]
    assert "0x52" in lines[-1]
    instructions = [line for line in lines if line[8:11] == "+0x"]
    assert len(instructions) == 30  # as tramp replay counts on cpu 1


def test_without_a_schedule_there_is_nothing_to_follow(open_session):
    answer = perform(open_session(), "along")
    assert answer.is_error
    assert "tramp replay STRING --step" in plain(answer.lines[0])


def test_the_command(capsys):
    assert main(["replay", SCHEDULE, "--step", "--max", "3"]) == 0
    assert len([line for line in capsys.readouterr().out.splitlines() if line[8:11] == "+0x"]) == 3


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nothing", "--step"], "nothing"),
        ([SCHEDULE, "--step", "--short"], "--short, --svg and --output"),
        ([SCHEDULE, "--plain"], "--step"),
        (["detach-during-call/tracing-multi-v2/6.12/voluntary/-/b99", "--step"], "b"),
    ],
)
def test_bad_input(capsys, words, says):
    assert main(["replay", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert says in err
