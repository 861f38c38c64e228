"""The protocol as a client without gdb sees it."""

import time
from xml.etree import ElementTree

import pytest

from emu.gdb.registers import REGISTERS
from patience import PATIENCE

RIP = next(number for number, register in enumerate(REGISTERS) if register.name == "rip")
GS_BASE = next(number for number, register in enumerate(REGISTERS) if register.name == "gs_base")


def word(digits: str) -> int:
    return int.from_bytes(bytes.fromhex(digits), "little")


def calls(function: str, *args: int, cpu: int = 0):
    return lambda debugger: debugger.call(function, *args, cpu=cpu)


def saves(debugger) -> None:
    """``saves(5)``, whose callee writes to a word of the slab."""
    debugger.call("saves", 5, room(debugger))


def room(debugger) -> int:
    return debugger.kernel.slab.alloc(64, "room")


def test_what_is_supported(serve):
    client = serve(saves).client()
    assert "PacketSize=10000;" in client.ask("qSupported:multiprocess+;swbreak+")
    assert client.ask("vMustReplyEmpty") == ""
    assert client.ask("qAttached") == "1"
    assert client.ask("vCont?") == "vCont;c;C;s;S;r"
    for unknown in ("R00", "qNothing", "vNothing;1", "b", "!", "A", "\x00"):
        assert client.ask(unknown) == ""


def test_no_acknowledgements(serve):
    client = serve(saves).client()
    assert client.ask("QStartNoAckMode") == "OK"
    client.acknowledges = False
    client.put("qC")
    assert client.signal() == b"$"


def test_the_target_description(serve):
    client = serve(saves).client()
    text, offset = "", 0
    while True:
        part = client.ask(f"qXfer:features:read:target.xml:{offset:x},200")
        text, offset = text + part[1:], offset + len(part) - 1
        if part[0] == "l":
            break
    root = ElementTree.fromstring(text)
    assert root.findtext("architecture") == "i386:x86-64"
    names = [entry.get("name") for entry in root.iter("reg")]
    assert names == [register.name for register in REGISTERS]
    assert [int(entry.get("regnum")) for entry in root.iter("reg")] == list(range(len(REGISTERS)))
    assert client.ask("qXfer:features:read:other.xml:0,100") == "E00"
    assert client.ask("qXfer:features:write:target.xml:0,100") == "E00"
    assert client.ask("qXfer:auxv:read::0,100") == ""
    assert client.ask("qXfer:features:read:target.xml:zz,1") == "E00"


def test_threads(serve):
    def begin(debugger):
        debugger.call("saves", 1, room(debugger), cpu=0)
        debugger.call("leaf", 2, room(debugger), cpu=1)

    served = serve(begin, vcpus=2)
    client = served.client()
    assert client.ask("qfThreadInfo") == "m1,2"
    assert client.ask("qsThreadInfo") == "l"
    assert client.ask("qC") == "QC1"
    assert bytes.fromhex(client.ask("qThreadExtraInfo,2")) == b"running"
    listed = ElementTree.fromstring(client.ask("qXfer:threads:read::0,1000")[1:])
    assert [(entry.get("id"), entry.get("core"), entry.get("name")) for entry in listed] == [
        ("1", "0", "saves"), ("2", "1", "leaf"),
    ]  # fmt: skip
    assert client.ask("T2") == "OK"
    assert client.ask("T3") == "E.no thread 3"
    assert client.ask("Hg3") == "E.no thread 3"
    assert client.ask("Hgx") == "E.'x' is not a hexadecimal number"
    assert client.ask("Hg2") == "OK"
    assert word(client.ask(f"p{RIP:x}")) == served.kernel.kallsyms.address("leaf")
    assert word(client.ask(f"p{GS_BASE:x}")) == served.kernel.percpu_areas[1]
    assert client.ask("Hc-1") == "OK"
    assert client.ask("Hg1") == "OK"
    assert word(client.ask(f"p{GS_BASE:x}")) == served.kernel.percpu_areas[0]


def test_registers(serve):
    served = serve(saves)
    client = served.client()
    everything = client.ask("g")
    assert len(everything) == sum(2 * register.size for register in REGISTERS)
    one_by_one = "".join(client.ask(f"p{number:x}") for number in range(len(REGISTERS)))
    assert everything == one_by_one
    assert client.ask("P1=1122334455667788") == "OK"
    assert served.debugger.registers()["rbx"] == 0x8877665544332211
    assert client.ask("p1") == "1122334455667788"
    changed = client.ask("g").replace("1122334455667788", "0000000000000001")
    before = served.debugger.position
    assert client.ask(f"G{changed}") == "OK"
    assert served.debugger.registers()["rbx"] == 1 << 56
    assert served.debugger.position == before + 1, "what was not changed is not set"


@pytest.mark.parametrize(
    ("packet", "answer"),
    [
        ("pff", "no register 255"),
        ("p", "'' is not a hexadecimal number"),
        ("P12=00000000", "cs of thread 1 can't be set"),
        ("P0=00", "rax has 8 bytes, not 1"),
        ("P0=zz", "is not hexadecimal bytes"),
        ("P99=00", "no register 153"),
        ("G00", "2 digits for all registers"),
    ],
)
def test_wrong_registers(serve, packet, answer):
    client = serve(saves).client()
    before = client.ask("g")
    assert client.ask(packet).startswith("E.")
    assert answer in client.ask(packet)
    assert client.ask("g") == before


def test_memory(serve):
    served = serve(saves)
    client = served.client()
    at = served.kernel.slab.alloc(4096, "memory")
    assert client.ask(f"M{at:x},4:deadbeef") == "OK"
    assert client.ask(f"m{at:x},4") == "deadbeef"
    assert client.ask(b"X%x,5:}\x03}\x04}\x0a}]z" % at) == "OK"
    assert client.ask(f"m{at:x},5") == b"#$*}z".hex()
    assert client.ask(f"X{at:x},0:") == "OK"
    assert client.ask("m10,8") == "E14"
    assert client.ask("M10,1:00") == "E14"
    assert client.ask("X10,1:a") == "E14"
    # What is mapped in front of a hole is given.
    stack = served.debugger.registers()["rsp"] & -4096
    end = next(page for page in range(stack, stack + (1 << 20), 4096) if not served.kernel.machine.is_mapped(page))
    assert len(client.ask(f"m{end - 16:x},100")) == 32
    assert client.ask(f"M{at:x},4:dead") == "E.2 bytes were sent, 4 announced"
    assert client.ask("m") == "E.m: expected an address and a size"
    assert client.ask("mffffffffffffffff,1") == "E14"
    assert client.ask(f"m{'f' * 17},1") == "E.0xfffffffffffffffff has more than 64 bits"


def test_breakpoints_are_not_in_the_text(serve):
    served = serve(saves)
    client = served.client()
    leaf = served.kernel.kallsyms.address("leaf")
    for kind in "01":
        assert client.ask(f"Z{kind},{leaf:x},1") == "OK"
    assert client.ask(f"Z0,{leaf:x},1") == "OK", "again is the same"
    assert served.kernel.machine.read(served.kernel.layout.text, 4096) == served.text
    assert client.resume("vCont;c") == ("", "T05thread:1;core:0;swbreak:;")
    assert word(client.ask(f"p{RIP:x}")) == leaf
    assert served.kernel.machine.read(served.kernel.layout.text, 4096) == served.text
    assert client.ask(f"z1,{leaf:x},1") == "OK"
    assert [one.where for one in served.debugger.breakpoints] == [leaf]
    assert client.ask(f"z0,{leaf:x},1") == "OK"
    assert client.ask(f"z0,{leaf:x},1") == "OK"
    assert served.debugger.breakpoints == ()
    assert client.ask(f"M{leaf:x},1:cc") == "E14"
    assert client.ask(f"m{leaf:x},1") == f"{served.text[leaf - served.kernel.layout.text]:02x}"
    assert client.ask("Z5,0,1") == ""
    assert client.ask("Z0,zz,1").startswith("E.")


def test_host_calls_stay(serve):
    served = serve(saves)
    client = served.client()
    stub = served.kernel.machine.host_calls.address
    assert client.ask(f"M{stub - 2:x},4:90909090") == "E14"
    assert client.ask(f"M{stub + 16:x},1:90") == "E14"


def test_text_may_be_changed_otherwise(serve):
    served = serve(saves)
    client = served.client()
    address = served.kernel.kallsyms.address("saves")
    assert client.ask(f"M{address:x},3:b82a00") == "OK"
    assert client.ask(f"M{address + 3:x},3:0000c3") == "OK"
    assert client.resume("c")[0] == "thread 1, saves, returned 0x2a\n"
    assert client.resume("bc")[1] == "T05thread:1;core:0;replaylog:begin;"


@pytest.mark.parametrize(("kind", "name", "after"), [(2, "watch", 0), (3, "rwatch", 1), (4, "awatch", 0)])
def test_watchpoints(serve, kind, name, after):
    served = serve(lambda debugger: debugger.call("leaf", 5, room(debugger)))
    client = served.client()
    address = served.debugger.registers()["rsi"]
    assert client.ask(f"Z{kind},{address:x},8") == "OK"
    _, reply = client.resume("vCont;c")
    assert reply == f"T05thread:1;core:0;{name}:{address:x};"
    leaf = served.kernel.kallsyms.address("leaf")
    ends = [leaf + line.offset + line.size for line in served.kernel.machine.images.at(leaf).lines]
    assert word(client.ask(f"p{RIP:x}")) == ends[1 + after]
    # A step over the access says so too, and so does a run back.
    assert client.resume("bs")[1] == "T05thread:1;core:0;"
    assert client.resume("vCont;s:1")[1] == f"T05thread:1;core:0;{name}:{address:x};"
    assert client.resume("bc")[1] == f"T05thread:1;core:0;{name}:{address:x};"
    assert word(client.ask(f"p{RIP:x}")) == ends[after]
    while not client.resume("vCont;c")[1].endswith("replaylog:end;"):
        pass
    for place in (2, 1) if kind == 4 else (1 + after,):
        assert client.resume("bc")[1] == f"T05thread:1;core:0;{name}:{address:x};"
        assert word(client.ask(f"p{RIP:x}")) == ends[place - 1]
    assert client.resume("bc")[1] == "T05thread:1;core:0;replaylog:begin;"
    assert client.ask(f"z{kind},{address:x},8") == "OK"


def test_forwards_and_backwards(serve):
    served = serve(saves)
    client = served.client()
    assert client.ask("?") == "T05thread:1;core:0;"
    start = client.ask("g")
    places = [client.ask(f"p{RIP:x}")]
    for _ in range(4):
        assert client.resume("vCont;s:1;c") == ("", "T05thread:1;core:0;")
        places.append(client.ask(f"p{RIP:x}"))
    assert len(set(places)) == 5
    for place in reversed(places[:-1]):
        assert client.resume("bs")[1] == "T05thread:1;core:0;"
        assert client.ask(f"p{RIP:x}") == place
    assert client.resume("bs")[1] == "T05thread:1;core:0;replaylog:begin;"
    assert client.ask("g") == start
    assert client.resume("c") == ("thread 1, saves, returned 0xb\n", "T05thread:1;core:0;replaylog:end;")
    assert client.resume("c")[1] == "T05thread:1;core:0;replaylog:end;"
    assert client.resume("s")[1] == "T05thread:1;core:0;replaylog:end;"
    assert client.resume("bc")[1] == "T05thread:1;core:0;replaylog:begin;"
    assert client.ask("g") == start


def test_stepping_a_range(serve):
    served = serve(saves)
    client = served.client()
    start = served.kernel.kallsyms.address("saves")
    assert client.resume(f"vCont;r{start:x},{start + 5:x}:1")[1] == "T05thread:1;core:0;"
    assert word(client.ask(f"p{RIP:x}")) == start + 5
    leaf = served.kernel.kallsyms.address("leaf")
    assert client.resume(f"vCont;r{start:x},{start + 0x100:x}:1")[1] == "T05thread:1;core:0;"
    assert word(client.ask(f"p{RIP:x}")) == leaf
    assert client.ask("vCont;x:1").startswith("E.vCont: no action")
    assert client.ask("vCont;c:9") == "E.no such thread"
    assert client.ask("vCont;s:9") == "E.no thread 9"


def test_a_fault_stops_before_the_instruction(serve):
    served = serve(calls("faults", 0x10))
    client = served.client()
    printed, reply = client.resume("vCont;c")
    assert reply == "T0bthread:1;core:0;"
    assert "page fault reading 0x10" in printed
    assert word(client.ask(f"p{RIP:x}")) == served.kernel.kallsyms.address("faults")
    assert client.resume("vCont;s:1")[1] == "T0bthread:1;core:0;"
    assert client.ask(f"P5={served.kernel.layout.direct_map.to_bytes(8, 'little').hex()}") == "OK"
    assert client.resume("vCont;s:1")[1] == "T05thread:1;core:0;"


def test_an_interrupt_stops_a_run(serve):
    served = serve(calls("loops"))
    client = served.client()
    for _ in range(3):
        client.put("vCont;c")
        time.sleep(0.05)
        client.raw(b"\x03")
        assert client.stop()[1] == "T02thread:1;core:0;"
    loops = served.kernel.kallsyms.address("loops")
    client.put(f"vCont;r{loops:x},{loops + 0x10:x}:1")
    time.sleep(0.05)
    client.raw(b"\x03")
    assert client.stop()[1] == "T02thread:1;core:0;"


def test_an_interrupt_right_behind_a_resume(serve):
    client = serve(calls("loops")).client()
    for _ in range(20):
        data = b"$vCont;c#a8\x03"
        client.raw(data)
        assert client.stop()[1] == "T02thread:1;core:0;"


def test_an_interrupt_while_nothing_runs_is_over(serve):
    client = serve(saves).client()
    client.raw(b"\x03\x03")
    assert client.ask("qC") == "QC1"
    assert client.resume("vCont;c")[1].endswith("replaylog:end;")


def test_two_threads_one_after_the_other(serve):
    def begin(debugger):
        debugger.call("saves", 1, room(debugger), cpu=0)
        debugger.call("saves", 2, room(debugger), cpu=1)

    served = serve(begin, vcpus=2)
    client = served.client()
    leaf, start = served.kernel.kallsyms.address("leaf"), served.kernel.kallsyms.address("saves")
    assert client.ask("Hg2") == "OK"
    assert client.ask(f"Z0,{leaf:x},1") == "OK"
    assert client.resume("vCont;c")[1] == "T05thread:2;core:1;swbreak:;"
    assert client.resume("vCont;s:1;c")[1] == "T05thread:1;core:0;"
    # A thread that is locked runs alone, and the others stay.
    assert client.resume("vCont;c:1")[1] == "T05thread:1;core:0;swbreak:;"
    assert client.resume("vCont;c:1") == (
        "thread 1, saves, returned 0x3\n", "T05thread:1;core:0;replaylog:end;",
    )  # fmt: skip
    assert client.ask("Hg2") == "OK"
    assert word(client.ask(f"p{RIP:x}")) == leaf
    # Back over what thread 2 did, which takes back what thread 1 did later.
    assert client.resume("bs")[1] == "T05thread:2;core:1;"
    assert client.ask("Hg1") == "OK"
    assert word(client.ask(f"p{RIP:x}")) == start


def test_a_step_back_of_a_thread_that_has_made_none(serve):
    def begin(debugger):
        debugger.call("saves", 1, room(debugger), cpu=0)
        debugger.call("saves", 2, room(debugger), cpu=1)

    served = serve(begin, vcpus=2)
    client = served.client()
    client.resume("vCont;s:1")
    client.resume("vCont;s:1")
    client.ask("Hg2")
    assert client.resume("bs")[1] == "T05thread:2;core:1;replaylog:begin;"
    client.ask("Hg1")
    assert word(client.ask(f"p{RIP:x}")) == served.kernel.kallsyms.address("saves") + 4, "the other one stays"


def test_a_thread_that_comes_next_stops_at_its_breakpoint(serve):
    def begin(debugger):
        debugger.call("saves", 1, room(debugger), cpu=0)
        debugger.call("saves", 2, room(debugger), cpu=1)

    served = serve(begin, vcpus=2)
    client = served.client()
    start = served.kernel.kallsyms.address("saves")
    assert client.ask(f"Z0,{start:x},1") == "OK"
    printed, reply = client.resume("vCont;c")
    assert printed == "thread 1, saves, returned 0x3\n"
    assert reply == "T05thread:2;core:1;swbreak:;"
    printed, reply = client.resume("vCont;c")
    assert printed == "thread 2, saves, returned 0x5\n"
    assert reply.endswith("replaylog:end;")


def test_a_sleeper_is_woken(serve):
    client = serve(calls("sleeps")).client()
    assert client.resume("vCont;c")[0] == "thread 1, sleeps, returned 0x5\n"


def test_broken_packets(serve):
    client = serve(saves).client()
    client.raw(b"$qC#00")
    assert client.signal() == b"-"
    client.raw(b"$qC#b4")
    assert client.signal() == b"+"
    assert client.get() == "QC1"
    client.raw(b"-")
    assert client.get() == "QC1", "sent again"
    client.raw(b"junk\r\n$m12$qC#b4")
    assert client.get() == "QC1"
    client.raw(b"$" + b"x" * 70_000 + b"#00")
    assert client.get() == "E.the packet has more than 65536 bytes"
    client.put("M0,1:\xff\xfe")
    assert client.get().startswith("E.")
    assert client.ask("QStartNoAckMode") == "OK"
    client.acknowledges = False
    client.raw(b"$qC#00")
    assert client.get() == "E.checksum '00' is not b4"
    assert client.ask("qC") == "QC1"


def test_a_defect_is_an_answer(serve, monkeypatch):
    served = serve(saves)
    client = served.client()
    monkeypatch.setattr(served.debugger, "registers", lambda thread: 1 // 0)
    assert client.ask("g").startswith("E.unexpected ZeroDivisionError")
    monkeypatch.undo()
    assert client.ask("g")[0] != "E"


def test_detaching_takes_the_breakpoints_out(serve):
    served = serve(saves, once=False)
    client = served.client()
    leaf = served.kernel.kallsyms.address("leaf")
    assert client.ask(f"Z0,{leaf:x},1") == "OK"
    client.resume("vCont;s:1")
    assert client.ask("D") == "OK"
    assert client.is_closed
    other = served.client()
    assert other.ask("?") == "T05thread:1;core:0;"
    assert served.debugger.breakpoints == ()
    assert word(other.ask(f"p{RIP:x}")) > served.kernel.kallsyms.address("saves"), "it stays where it was"


@pytest.mark.parametrize("kill", ["k", "vKill;1"])
def test_after_a_kill_it_begins_anew(serve, kill):
    served = serve(saves, once=False)
    client = served.client()
    client.resume("vCont;c")
    client.put(kill)
    if kill != "k":
        assert client.get() == "OK"
    assert client.signal() in (b"+", b"")
    assert client.is_closed
    assert word(served.client().ask(f"p{RIP:x}")) == served.kernel.kallsyms.address("saves")


def test_a_client_that_vanishes_while_something_runs(serve):
    served = serve(calls("loops"), once=False)
    client = served.client()
    leaf = served.kernel.kallsyms.address("leaf")
    assert client.ask(f"Z0,{leaf:x},1") == "OK"
    client.put("vCont;c")
    time.sleep(0.05)
    client.close()
    other = served.client()
    assert other.ask("?") == "T05thread:1;core:0;"
    assert served.debugger.breakpoints == ()
    other.raw(b"$vCont;s:1#")  # cut off
    other.close()
    assert served.client().ask("qC") == "QC1"


def test_once(serve):
    served = serve(saves)
    served.client().close()
    served.thread.join(timeout=PATIENCE)
    assert not served.thread.is_alive()


def test_a_second_client_is_told_so(serve):
    served = serve(saves, once=False)
    first, second = served.client(), served.client()
    assert first.ask("qC") == "QC1"
    for question in ("qSupported", "vMustReplyEmpty"):
        assert second.ask(question) == "E.another gdb is connected; one at a time"
    assert first.ask("qC") == "QC1"
    first.close()
    assert served.client().ask("qC") == "QC1"
    assert second.ask("qC") == "E.another gdb is connected; one at a time"


def test_who_waits_silently_comes_next(serve):
    served = serve(saves, once=False)
    first, second = served.client(), served.client()
    assert first.ask("qC") == "QC1"
    first.close()
    assert second.ask("qC") == "QC1"


def test_monitor(serve):
    served = serve(saves)
    client = served.client()
    listed = client.monitor("help")
    for name in ("position", "next WHAT", "goto POSITION", "events [N]", "phases", "vcpus", "symbols", "help"):
        assert f"\n{name} " in f"\n{listed}"
    assert client.monitor("") == listed
    assert client.monitor("position") == "position 1 of 1\n"
    assert client.monitor("next call") == "continue goes to the next call\n"
    assert client.resume("vCont;c") == ("", "T00thread:1;core:0;")
    assert client.monitor("position") == "position 6 of 6\n"
    assert client.monitor("goto 3") == "continue goes to position 3\n"
    client.resume("vCont;c")
    assert client.monitor("position") == "position 3 of 6\n"
    assert client.resume("vCont;c")[1].endswith("replaylog:end;")
    assert client.monitor("goto 3") == "continue goes to position 3\n"
    assert client.resume("vCont;c") == ("", "T00thread:1;core:0;"), "also when everybody is done"
    assert client.monitor("vcpus") == "cpu 0: thread 1, saves, at saves+0x4\n"
    assert client.monitor("events") == "nothing has happened yet\n"
    assert client.monitor("phases") == "saves+0x4: no phases are known here\n"
    assert str(served.symbols.path) in client.monitor("symbols")


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("nothing", "error: no command 'nothing'; monitor help lists them"),
        ("next", "error: no goal 'nothing'"),
        ("next week", "error: no goal 'week'"),
        ("goto", "error: no position given: there are 1 to 1"),
        ("goto 0", "error: no position 0: there are 1 to 1"),
        ("goto 2", "error: no position 2: there are 1 to 1"),
        ("goto x", "error: no position x: there are 1 to 1"),
        ("events x", "error: 'x' is not a number of events"),
        ("'", "error: No closing quotation"),
    ],
)
def test_monitor_commands_that_cannot_be(serve, line, answer):
    assert serve(saves).client().monitor(line).startswith(answer)
