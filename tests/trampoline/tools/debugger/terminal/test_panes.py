import pytest

from trampoline.tools.debugger.terminal import panes
from trampoline.tools.debugger.terminal.command_table import perform
from trampoline.tools.debugger.terminal.styled_text import Role, plain


def texts(pane):
    return [plain(row.spans) for row in pane.rows]


def test_the_code_shows_where_one_is(session, do):
    do("until phase enter")
    do("break")
    seen = session.look()
    shown = panes.code(seen)
    assert shown.title == "code: bpf_trampoline_6442450945"
    here = texts(shown)[shown.at]
    assert here.startswith("b=> +0x28  enter   xor edi, edi")
    assert here.endswith("; cookie of fentry0")
    assert sum("=>" in row for row in texts(shown)) == 1
    assert texts(shown)[0] == "<bpf_trampoline_6442450945>:"
    assert ".Lskip0:" in texts(shown)
    with_bytes = panes.code(seen, with_bytes=True)
    assert " 31ff " in texts(with_bytes)[with_bytes.at]


def test_a_cursor_is_marked_by_a_character_and_a_style(session, do):
    do("s 3")
    seen = session.look()
    address = seen.code[5].address
    shown = panes.code(seen, cursor=address)
    (row,) = [row for row in shown.rows if row.address == address]
    assert plain(row.spans).startswith(" >  ")
    assert Role.CURSOR in {span.role for span in row.spans}


def test_every_register_is_shown_and_changed_ones_are_marked(session, do):
    do("s 6")
    do("s")
    seen = session.look()
    text = "\n".join(texts(panes.registers(seen)))
    registers = session.debugger.registers()
    for name, value in registers.items():
        if name not in ("eflags", "gs_base"):
            assert f"{name:<3} {value:016x}" in text
    assert f"gs  {registers['gs_base']:016x}" in text
    assert f"eflags {registers['eflags']:08x}" in text
    assert f"rax {registers['rax']:016x}*" in text  # mov eax, 1
    assert text.count("*") == 2  # and rip
    do("p $rax")
    assert "*" not in "\n".join(texts(panes.registers(session.look())))


def test_rows_of_registers_have_the_width_of_their_pane(session, do):
    do("s 9")
    assert max(len(row) for row in texts(panes.registers(session.look()))) <= 42


def test_the_stack_names_its_slots(session, do):
    do("phase save")
    do("phase")
    rows = texts(panes.stack(session.look()))
    assert rows[0] == "   +0x8 return bpf_fentry_test1+0x9"
    assert any(row.endswith("nr_args    1*") for row in rows)
    assert any("arg1       1* int a" in row for row in rows)
    assert rows[-1].startswith(">")
    assert panes.stack(session.look()).title == "stack, from rbp"


def test_threads_and_what_a_cpu_has_not_seen(open_session):
    session = open_session(live=True, programs=("fentry",), calls=("bpf_fentry_test1(1)", "bpf_fentry_test1(2)"))
    perform(session, "to patch")
    seen = session.look()
    rows = texts(panes.cpus(seen))
    assert rows[0] == "   1 cpu 0, running: bpf_fentry_test1(1)"
    assert any(row.startswith("=> 3 attach fentry0: at ipi: sync_core") for row in rows)
    assert rows[3:] == [
        *("   cpu 0: not serialised", "      bpf_fentry_test1+0x4: 0f -> cc"),
        *("   cpu 1: not serialised", "      bpf_fentry_test1+0x4: 0f -> cc"),
    ]
    code = texts(panes.code(seen))
    assert code[0].startswith("attach fentry0, an operation of process context: at ipi")
    assert any("+0x4" in row and "cpu 0 may see the old" in row for row in code)
    events = texts(panes.events(seen))
    assert events[-1].endswith("text patched at bpf_fentry_test1+0x4, int3: 0f -> cc")
    assert "*" in events[-1]
    assert panes.registers(seen).rows == ()
    assert panes.stack(seen).rows == ()


@pytest.mark.parametrize("commands", [(), ("s",), ("c",), ("to program",), ("until bpf_prog_fexit1+2",), ("c", "rc")])
def test_every_pane_can_be_shown_anywhere(session, do, commands):
    for command in commands:
        do(command)
    seen = session.look()
    for pane in panes.PANES.values():
        assert all("\n" not in row for row in texts(pane(seen)))
    assert plain(panes.status(seen)).startswith(f" position {seen.position}")
    assert plain(panes.about(seen)) is not None


def test_source_lines_of_compiled_programs(open_session):
    session = open_session("examples/watch_calls.o", programs=())
    perform(session, "to program")
    rows = texts(panes.code(session.look()))
    assert any(row.strip() == "; ./watch_calls.c:47: seen++;" for row in rows)
    assert any(row.endswith("; 12: r1 += 1") for row in rows)
