"""The screen, driven by Textual's own pilot."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from patience import PATIENCE
from trampoline.tools.debugger.terminal.app import StepApp
from trampoline.tools.debugger.terminal.command_table import perform

pytestmark = pytest.mark.slow


def shown(app):
    return ["".join(segment.text for segment in strip).rstrip() for strip in app.screen._compositor.render_strips()]


@pytest.fixture
def executor():
    with ThreadPoolExecutor(1) as executor:
        yield executor


@pytest.fixture
def open_session(executor, opened):
    """Sessions of the executor's thread, where the app uses them: greenlets stay in the thread they began in."""
    stack = ExitStack()
    yield lambda *target, **options: executor.submit(opened, stack, *target, **options).result()
    executor.submit(stack.close).result()


@pytest.fixture
def screen(session, executor):
    """Runs a coroutine function with the app, its pilot, and ``press``, which waits for what a key does."""

    def run(drive, *, size=(80, 24), begin=(), session=session):
        async def main():
            app = StepApp(session, executor, begin)
            async with app.run_test(size=size) as pilot:

                async def press(*keys):
                    await pilot.press(*keys)
                    await settle()

                async def settle():
                    await pilot.pause()
                    await app.workers.wait_for_complete()
                    await pilot.pause()

                await settle()
                await drive(app, pilot, press)

        asyncio.run(main())

    return run


def test_what_80_columns_show(screen, session):
    async def drive(app, pilot, press):
        await press("s", "s", "s", "s", "n")
        rows = shown(app)
        assert len(rows) == 24
        assert rows[0].startswith(" position 6  thread 1 on cpu 0  save")
        assert rows[1].strip("━─").startswith(" 1 code: bpf_trampoline_")
        (here,) = [row for row in rows if "=>" in row]
        assert here.split()[1:] == ["+0x8", "save", "mov", "qword", "ptr", "[rbp", "-", "0x20],", "rbx"]
        assert any(" 2 stack, from rbp " in row and " 3 registers " in row for row in rows)
        assert any("return bpf_fentry_test1+0x9 " in row for row in rows)
        assert any(f"rip {session.debugger.rip:016x}*" in row for row in rows)
        assert rows[-1].startswith(" s step n over f out c run")

    screen(drive)


def test_what_120_columns_show(screen):
    async def drive(app, pilot, press):
        await press("p", "p")
        rows = shown(app)
        for title in ("1 code", "2 stack", "3 registers", "4 call chain", "5 threads, vCPUs", "6 events"):
            assert any(title in row for row in rows), title
        assert any(row.startswith("#1 bpf_fentry_test1+0x9") for row in rows)

    screen(drive, size=(120, 40))


@pytest.mark.parametrize(
    ("keys", "commands"),
    [
        (("s", "s"), ["s", "s"]),
        (("n", "n", "n"), ["n 3"]),
        (("p", "f"), ["p", "f"]),
        (("c",), ["c"]),
        (("c", "r", "c"), ["c", "rc"]),
        (("p", "p", "r", "s"), ["p", "p", "rs"]),
        (("p", "p", "n", "r", "n"), ["p", "p", "n", "rn"]),
        (("p", "r", "f"), ["p", "rf"]),
        (("p", "enter", "enter"), ["p", "p", "p"]),
    ],
)
def test_keys_are_commands(screen, open_session, session, keys, commands):
    other = open_session()
    for command in commands:
        perform(other, command)

    async def drive(app, pilot, press):
        await press(*keys)
        assert session.debugger.position == other.debugger.position
        assert session.debugger.registers() == other.debugger.registers()

    screen(drive)


def test_typing_ahead_loses_nothing_and_keeps_the_order(screen, session):
    async def drive(app, pilot, press):
        await press("s", "colon", *"s 3", "enter", "s", *"x", "backspace", *"goto 3", "enter", "s", "s")
        assert session.debugger.position == 5
        assert session.debugger.end == 6

    screen(drive)


def test_a_breakpoint_at_the_cursor(screen, session):
    async def drive(app, pilot, press):
        await press("p", "down", "down", "down", "b")
        (breakpoint,) = session.debugger.breakpoints
        assert any(row.startswith("b>") for row in shown(app))
        await press("c")
        assert session.debugger.rip == session.debugger.address_of(breakpoint.where)
        assert any(row.startswith("b=>") for row in shown(app))
        await press("b")
        assert session.debugger.breakpoints == ()

    screen(drive)


def test_until_the_cursor(screen, session):
    async def drive(app, pilot, press):
        await press("p", "pagedown", "up", "u")
        assert session.debugger.registers()["rip"] == session.look().code[9].address
        await press("u", *"phase exit", "enter")
        assert session.debugger.phase() == "exit"

    screen(drive)


def test_the_command_line_remembers(screen, session):
    async def drive(app, pilot, press):
        await press("colon", *"s 2", "enter")
        await press("colon", "up", "enter")
        assert session.debugger.position == session.start + 4
        await press("colon", "escape", "s")
        assert session.debugger.position == session.start + 5
        await press(*"i r", "enter")
        assert any(row.startswith("eflags") for row in shown(app))
        await press("q")
        assert any("=>" in row for row in shown(app))

    screen(drive)


def test_a_refused_command_is_told_on_the_screen(screen):
    async def drive(app, pilot, press):
        await press("colon", *"break nix", "enter")
        assert "no symbol 'nix'" in shown(app)[-2]
        await press("r", "x")
        assert "r x is no command" in shown(app)[-2]
        await press("r", "s")
        assert "at the start" in shown(app)[-2]

    screen(drive)


def test_small_screens_show_one_pane_after_the_other(screen):
    async def drive(app, pilot, press):
        for key, title in (("4", "4 call chain"), ("5", "5 threads"), ("6", "6 events"), ("3", "3 registers")):
            await press(key)
            assert any(title in row for row in shown(app))
        assert not any("6 events" in row for row in shown(app))
        await press("ctrl+x", "o")
        assert app.focused.id == "chain"
        await press("tab", "tab", "tab")
        assert app.focused.id == "code"
        await press("shift+tab")
        assert app.focused.id == "events"

    screen(drive)


def test_a_screen_too_small_says_so_and_recovers(screen):
    async def drive(app, pilot, press):
        await press("s")
        before = shown(app)
        await pilot.resize_terminal(60, 10)
        await pilot.pause()
        assert shown(app)[0].strip() == "60x10 is too small: 72x20 at least (q: quit)"
        assert not any("=>" in row for row in shown(app))
        await pilot.resize_terminal(10, 2)
        await pilot.pause()
        await pilot.resize_terminal(80, 24)
        await pilot.pause()
        assert shown(app) == before
        await pilot.resize_terminal(60, 10)
        await press("q")
        assert app.return_code == 0

    screen(drive)


def test_help_covers_the_screen_and_goes_away(screen):
    async def drive(app, pilot, press):
        before = shown(app)
        for key, leave in (("question_mark", "q"), ("f1", "escape")):
            await press(key)
            assert "Keys" in "\n".join(shown(app))
            await press("end")
            assert "An empty line repeats the last move." in "\n".join(shown(app))
            await press(leave)
            assert shown(app) == before

    screen(drive)


def test_only_changed_lines_are_painted(screen, monkeypatch):
    async def drive(app, pilot, press):
        await press("s", "s", "s")
        painted = []
        refresh = app.query_one("#registers").refresh

        def noting(*regions, **options):
            painted.extend(regions)
            return refresh(*regions, **options)

        monkeypatch.setattr(app.query_one("#registers"), "refresh", noting)
        await press("s")
        assert {region.height for region in painted} == {1}
        assert 1 <= len(painted) <= 3  # rbp, rsp, rip

    screen(drive)


def test_what_runs_can_be_stopped(screen, session, monkeypatch):
    begun, interrupted = threading.Event(), threading.Event()
    run = session.debugger.run

    def slow():
        begun.set()
        assert interrupted.wait(PATIENCE)
        return run(1)

    monkeypatch.setattr(session.debugger, "run", slow)
    monkeypatch.setattr(session.debugger, "interrupt", interrupted.set)

    async def drive(app, pilot, press):
        await pilot.press("c", "s", "s")
        assert begun.wait(PATIENCE)
        await press("ctrl+c")
        assert session.debugger.position == session.start + 1  # what was typed behind it is dropped

    screen(drive)


def test_leaving_while_something_runs(screen, session, monkeypatch):
    interrupted = threading.Event()
    monkeypatch.setattr(session.debugger, "run", lambda: interrupted.wait(PATIENCE) and session.debugger.step())
    monkeypatch.setattr(session.debugger, "interrupt", interrupted.set)

    async def drive(app, pilot, press):
        await pilot.press("c", "s")
        await press("q")
        assert app.return_code == 0

    screen(drive)


def test_what_no_command_may_raise_ends_the_app_and_is_kept(screen, session, monkeypatch):
    def broken(count):
        raise ZeroDivisionError

    monkeypatch.setattr(session.debugger, "step", broken)

    async def drive(app, pilot, press):
        await press("s")
        assert isinstance(app.failure, ZeroDivisionError)

    screen(drive)


def test_commands_that_are_done_first(screen, session):
    async def drive(app, pilot, press):
        assert session.debugger.position == session.start + 3
        assert any("=>" in row for row in shown(app))

    screen(drive, begin=("s", "s 2"))


def test_threads(screen, open_session):
    session = open_session(live=True, programs=("fentry",), calls=("bpf_fentry_test1(1)", "bpf_fentry_test1(2)"))

    async def drive(app, pilot, press):
        assert "process context" in shown(app)[2]
        await press("t")
        assert session.debugger.thread.number == 1
        await press("t", "t", "s", "s", "5")
        assert session.debugger.thread.number == 3
        assert any("=> 3 attach fentry0: at " in row for row in shown(app))

    screen(drive, session=session)
