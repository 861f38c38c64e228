"""The machine on a small guest: calls, counts, exceptions through the guest's own table, ends of every kind."""

import pytest

from emu.vmlinux.bug_table import BugSite
from emu.vmlinux.machine_errors import KernelDied, LimitReached, NotInDump, StateUnusable, WouldSleep
from small_guest import ABSENT, READ_ONLY, STACK_TOP

_ADD = "lea rax, [rdi + rsi]\nret"
_SUM = "mov rax, [rsp + 8]\nadd rax, r9\nret"
_LOOP = "again: dec rdi\njne again\nmov eax, 7\nret"
_COPY = "mov rcx, rdx\nrep movsb\nret"
# Skips the instruction that faulted, which is three bytes long, and leaves CR2 and the error code in rdx and rcx.
_SKIP = "pop rcx\nmov rdx, cr2\nadd qword ptr [rsp], 3\niretq"


def test_a_call_gives_value_counts_and_order(guest):
    one = guest({"add": _ADD, "outer": "call add\nadd rax, 1\nret"})
    run = one.call("outer", 40, 1)
    assert run.rax == 42
    assert run.by_function == [("outer", 1), ("add", 2), ("outer", 2)]
    assert run.totals == {"outer": 3, "add": 2}
    assert run.unbalanced_returns == 0


def test_arguments_beyond_the_sixth_lie_on_the_stack(guest):
    assert guest({"sum": _SUM}).call("sum", 0, 0, 0, 0, 0, 30, 12).rax == 42


def test_a_repeated_instruction_counts_once_and_a_loop_as_often_as_it_runs(guest):
    one = guest({"copy": _COPY, "loop": _LOOP})
    assert one.call("copy", STACK_TOP - 4096, STACK_TOP - 8192, 1000).instructions == 3
    assert one.call("loop", 100_000).instructions == 200_002


def test_uncounted_calls_give_the_same_value(guest):
    one = guest({"loop": _LOOP})
    assert (one.call("loop", 5, count=False).rax, one.call("loop", 5, count=False).instructions) == (7, 0)
    assert one.call("loop", 5).instructions == 12


def test_returns_that_go_elsewhere_are_unbalanced(guest):
    one = guest({"odd": "lea rax, [rip + there]\npush rax\nret\nthere: ret"})
    assert one.call("odd").unbalanced_returns == 2


def test_int3_and_page_faults_go_through_the_guests_table(guest):
    handlers = {3: "trap", 14: "fault"}
    one = guest(
        {
            "trap": "mov eax, 5\niretq",
            "fault": _SKIP,
            "breaks": "int3\nadd rax, 1\nret",
            "reads": "mov rax, [rdi]\nmov rax, rdx\nret",
            "writes": "mov [rdi], rax\nmov rax, rcx\nret",
        },
        handlers,
    )
    run = one.call("breaks")
    assert (run.rax, run.by_function) == (6, [("breaks", 1), ("trap", 2), ("breaks", 2)])
    assert [(e.vector, e.rip) for e in run.exceptions] == [(3, one.addresses["breaks"])]
    run = one.call("reads", 0x1000)
    assert run.rax == 0x1000
    assert run.by_function == [("fault", 4), ("reads", 2)]
    assert [(e.vector, e.address) for e in run.exceptions] == [(14, 0x1000)]
    assert one.call("writes", READ_ONLY).rax == 3
    assert one.call("writes", 0x1000).rax == 2


def test_several_faults_in_one_call(guest):
    one = guest({"fault": _SKIP, "reads": "mov rax, [rdi]\nmov rax, [rsi]\nmov rax, rdx\nret"}, {14: "fault"})
    assert one.call("reads", 0x1000, 0x2000).rax == 0x2000


def test_an_exception_without_a_handler_is_death(guest):
    one = guest({"traps": "int3\nret"})
    with pytest.raises(KernelDied, match="no handler"):
        one.call("traps")


def test_warn_is_a_message_and_bug_is_death(guest):
    one = guest({"warns": "mov eax, 3\nud2\nret"})
    place = one.addresses["warns"] + 5
    one.bugs.sites[place] = BugSite(place, True, "kernel/bpf/core.c:12", "odd %d\n")
    run = one.call("warns")
    assert (run.rax, run.instructions) == (3, 2)
    assert [message.text for message in run.messages] == ["WARNING: kernel/bpf/core.c:12 odd %d"]
    one.bugs.sites[place] = BugSite(place, False, "mm/slub.c:1", "")
    with pytest.raises(KernelDied, match=r"kernel BUG at mm/slub.c:1: at warns\+0x5"):
        one.call("warns")


def test_death_sleep_and_limits_end_the_session_until_it_is_reset(guest):
    one = guest(
        {
            "panic": "ret",
            "__schedule": "ret",
            "dies": "call panic\nret",
            "sleeps": "call __schedule\nret",
            "loop": _LOOP,
            "spins": "pause\nspin: jmp spin",
            "add": _ADD,
        }
    )
    for call, error, says in (
        (lambda: one.call("dies"), KernelDied, r"panic\(\) was called at panic, called by dies\+0x5"),
        (lambda: one.call("sleeps"), WouldSleep, r"would sleep at __schedule, called by sleeps\+0x5"),
        (lambda: one.call("loop", 1000, limit=100), LimitReached, "100 instructions"),
        (lambda: one.call("loop", 1 << 40, limit=100_000), LimitReached, "100000 instructions"),
        (lambda: one.call("loop", 1 << 40, count=False, limit=1000), LimitReached, "1000 instructions"),
        (lambda: one.call("spins", seconds=0.2), LimitReached, "time"),
        (lambda: one.call("loop", 1 << 60, count=False, seconds=0.2), LimitReached, "time"),
    ):
        with pytest.raises(error, match=says):
            call()
        with pytest.raises(StateUnusable, match="reset"):
            one.call("add", 1, 2)
        one.reset()
        assert one.call("add", 1, 2).rax == 3


@pytest.mark.parametrize("count", [False, True], ids=["uncounted", "counted"])
def test_a_run_that_is_interrupted_often_goes_on_where_it_was(guest, monkeypatch, count):
    monkeypatch.setattr("emu.host.watchdog.TICK_SECONDS", 0.0005)
    up_and_down = "again: inc dword ptr [rsi]\ndec dword ptr [rsi]\ndec rdi\njne again\nmov eax, [rsi]\nret"
    one = guest({"up_and_down": up_and_down})
    run = one.call("up_and_down", 500_000, STACK_TOP - 8192, count=count)
    assert (run.rax, run.instructions) == (0, 2_000_002 if count else 0)


def test_a_limit_that_is_not_reached_changes_nothing(guest):
    assert guest({"loop": _LOOP}).call("loop", 100, limit=202).instructions == 202


def test_a_page_that_the_dump_lacks_is_named(guest):
    one = guest({"reads": "mov rax, [rdi]\nret"})
    with pytest.raises(NotInDump, match=r"physical page 0x1000000 is not in the memory image: it was needed at reads"):
        one.call("reads", ABSENT + 8)


def test_hosted_functions_return_at_once(guest):
    one = guest({"waits": "ud2\nret", "outer": "call waits\nadd rax, 1\nret"})
    assert one.machine.host("waits", 41)
    assert not one.machine.host("no_such_function")
    run = one.call("outer")
    assert (run.rax, run.by_function) == (42, [("outer", 3)])


@pytest.mark.parametrize(
    ("code", "rax"),
    [
        ("0f 01 e8", 5),  # serialize
        ("66 0f 38 82 04 24", 5),  # invpcid rax, [rsp]
        ("66 0f 38 82 44 24 08", 5),  # invpcid rax, [rsp + 8]
        ("f3 0f c7 f8", 2),  # rdpid rax: the CPU's number
        ("0f 01 cb", 5),  # stac
        ("0f 0d 0c 24", 5),  # prefetchw [rsp]
    ],
)
def test_instructions_that_the_engine_may_lack_are_done(guest, code, rax):
    one = guest({"place": "mov eax, 5\n" + "nop\n" * 16 + "ret"}, index=2)
    body = bytes.fromhex(code)
    one.machine.write_code(one.addresses["place"] + 5, body + b"\xc3")
    run = one.call("place")
    assert (run.rax, run.instructions) == (rax, 3)
