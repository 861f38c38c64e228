"""The real gdb."""

import re
import signal
import subprocess
import time

import pytest

from patience import PATIENCE

pytestmark = pytest.mark.slow

WALK = """python
import gdb
def frames():
    frame = gdb.newest_frame()
    while frame is not None:
        yield f"{frame.name()}:{int(frame.read_register('rbx'))}:{int(frame.read_register('r12'))}"
        frame = frame.older()
for _ in range(%d):
    print("FRAMES", *frames())
    gdb.execute("stepi", to_string=True)
"""


def begin(debugger) -> None:
    debugger.call("frameless", 5, debugger.kernel.slab.alloc(64, "room"))


def two(debugger) -> None:
    room = debugger.kernel.slab.alloc(64, "room")
    debugger.call("saves", 1, room, cpu=0)
    debugger.call("saves", 2, room, cpu=1)


def loops(debugger) -> None:
    debugger.call("loops")


def between(text: str, start: str, end: str = "") -> str:
    """What is printed between two lines that the script echoes."""
    return text.split(f"{start}\n", 1)[1].split(f"{end}\n", 1)[0] if end else text.split(f"{start}\n", 1)[1]


def test_frames_at_every_instruction(serve, tool, tmp_path):
    served = serve(begin)
    script = tmp_path / "walk.gdb"
    script.write_text(WALK % 30)
    printed = served.gdb(tool("gdb"), f"source {script}")
    seen = [line.split()[1:] for line in printed.splitlines() if line.startswith("FRAMES")]
    served.thread.join(timeout=PATIENCE)
    debugger = served.debugger
    debugger.goto(1)
    expected, callers = [], []
    before = debugger.registers()
    for _ in range(30):
        symbol = debugger.symbol(debugger.rip).partition("+")[0]
        names = [symbol, *(name for name, _, _ in reversed(callers)), "tramplab_return"]
        saved = [(before["rbx"], before["r12"])] if not callers else []
        values = [(now[1], now[2]) for now in reversed(callers)]
        current = debugger.registers()
        registers = [(current["rbx"], current["r12"]), *values, *saved]
        while len(registers) < len(names):
            registers.append((before["rbx"], before["r12"]))
        expected.append([f"{name}:{rbx}:{r12}" for name, (rbx, r12) in zip(names, registers, strict=False)])
        text = debugger.code_line(debugger.rip).text
        debugger.step()
        if text.startswith("call"):
            callers.append((symbol, current["rbx"], current["r12"]))
        elif text.startswith("ret") and callers:
            callers.pop()
        elif text.startswith("ret"):
            break
    assert len(expected) == 27
    assert seen[: len(expected)] == expected


def test_names_and_disassembly(serve, tool):
    served = serve(begin)
    printed = served.gdb(
        tool("gdb"), "echo ==1\\n", "info symbol leaf", "p &leaf", "x/2i leaf", "info line saves", "echo ==2\\n",
        "p sizeof(char)", "disassemble leaf",
    )  # fmt: skip
    leaf = served.kernel.kallsyms.address("leaf")
    assert between(printed, "==1", "==2").splitlines()[:4] == [
        "leaf in section .text",
        f"$1 = (<text variable, no debug info> *) {leaf:#x} <leaf>",
        f"   {leaf:#x} <leaf>:\tlea    0x1(%rdi),%rax",
        f"   {leaf + 4:#x} <leaf+4>:\tmov    %rax,(%rsi)",
    ]
    assert between(printed, "==2").count("<+") == 4, "the symbol's size ends the listing"


def test_breaking_stepping_and_going_back(serve, tool):
    served = serve(begin)
    printed = served.gdb(
        tool("gdb"), "break *leaf", "continue", "echo ==1\\n", "backtrace", "stepi", "stepi", "x/gx $rsi",
        "reverse-stepi", "x/gx $rsi", "reverse-continue", "echo ==2\\n", "delete", "finish", "p $rax", "reverse-finish",
        "x/i $pc", "echo ==3\\n", "reverse-continue", "info registers rip", "echo ==4\\n", "continue",
    )  # fmt: skip
    served.thread.join(timeout=PATIENCE)
    served.debugger.goto(1)
    room = served.debugger.registers()["rsi"]
    assert "Breakpoint 1, " in printed
    stepped = between(printed, "==1", "==2")
    frames = [line.split()[-2] for line in stepped.splitlines()[:4]]
    assert frames == ["leaf", "saves", "frameless", "tramplab_return"]
    assert re.findall(rf"{room:#x}:\t(\w+)\n", stepped) == ["0x0000000000000006", "0x0000000000000000"]
    assert stepped.count("Breakpoint 1, ") == 1
    finished = between(printed, "==2", "==3")
    assert "$1 = 6\n" in finished
    assert re.search(r"=> 0x\w+ <frameless\+20>:\tcall +0x\w+ <saves>", finished)
    back = between(printed, "==3", "==4")
    assert "\nNo more reverse-execution history.\n" in back
    assert re.search(r"rip +0x\w+ +0x\w+ <frameless>", back)
    assert between(printed, "==4").startswith("thread 1, frameless, returned 0xb\n")
    assert served.kernel.machine.read(served.kernel.layout.text, 4096) == served.text


def test_watching_memory(serve, tool):
    served = serve(begin)
    room = served.debugger.registers()["rsi"]
    printed = served.gdb(
        tool("gdb"), f"watch *(long *){room:#x}", "continue", "x/i $pc", "echo ==1\\n", "continue", "echo ==2\\n",
        "reverse-continue", "x/i $pc", "delete", f"rwatch *(long *){room:#x}", "continue", "x/i $pc",
    )  # fmt: skip
    assert f"Hardware watchpoint 1: *(long *){room:#x}" in printed
    forwards = printed.split("==1\n")[0]
    assert "Old value = 0\nNew value = 6\n" in forwards
    assert "<leaf+7>:" in forwards
    backwards = between(printed, "==2")
    assert "Old value = 6\nNew value = 0\n" in backwards
    assert "<leaf+4>:" in backwards
    assert f"Hardware read watchpoint 2: *(long *){room:#x}" in backwards
    assert "\nValue = 6\n" in backwards
    assert "<leaf+10>:" in backwards


def test_a_host_call(serve, tool):
    served = serve(lambda debugger: debugger.call("sleeps"))
    printed = served.gdb(tool("gdb"), "break *schedule", "continue", "backtrace", "stepi", "backtrace", "continue")
    assert re.findall(r"#\d +0x\w+ in (\w+) \(\)", printed) == ["schedule", "sleeps", "tramplab_return"] * 2
    assert "thread 1, sleeps, returned 0x5\n" in printed


def test_a_gdb_that_is_killed_midway(serve, tool):
    served = serve(loops, once=False)
    commands = ["set debuginfod enabled off", f"target remote :{served.address[1]}", "break *leaf", "continue"]
    argv = [tool("gdb"), "-nx", "-batch", *(word for line in commands for word in ("-ex", line))]
    running = subprocess.Popen([*argv, str(served.symbols.path)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    deadline = time.monotonic() + PATIENCE
    while served.debugger.position < 1000 and time.monotonic() < deadline:
        time.sleep(0.02)
    running.kill()
    running.communicate(timeout=PATIENCE)
    printed = served.gdb(tool("gdb"), "info symbol $pc", "info breakpoints", "reverse-continue", "x/i $pc")
    assert re.search(r"loops( \+ \d+)? in section .text", printed)
    assert "No more reverse-execution history." in printed
    assert "<loops>" in printed
    assert served.debugger.breakpoints == ()


def test_two_threads(serve, tool):
    served = serve(two, vcpus=2)
    printed = served.gdb(
        tool("gdb"), "info threads", "echo ==1\\n", "thread 2", "info registers gs_base", "stepi", "echo ==2\\n",
        "info threads", "echo ==3\\n", "set scheduler-locking on", "break *leaf", "continue", "thread 1", "stepi",
        "echo ==4\\n", "info threads",
    )  # fmt: skip
    start, leaf = (served.kernel.kallsyms.address(name) for name in ("saves", "leaf"))
    shown = re.findall(r"^([* ]) (\d) +Thread (\d) \"saves\" \(running\) (0x\w+) in (\w+) \(\)$", printed, re.MULTILINE)
    assert shown[:2] == [("*", "1", "1", f"{start:#x}", "saves"), (" ", "2", "2", f"{start:#x}", "saves")]
    assert f"gs_base        {served.kernel.percpu_areas[1]:#x} " in between(printed, "==1", "==2")
    stepped = re.findall(r" Thread (\d) .* (0x\w+) in", between(printed, "==2", "==3"))
    assert stepped == [("1", f"{start:#x}"), ("2", f"{start + 1:#x}")]
    locked = re.findall(r" Thread (\d) .* (0x\w+) in", between(printed, "==4"))
    assert locked == [("1", f"{start + 1:#x}"), ("2", f"{leaf:#x}")]


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c(serve, tool):
    served = serve(loops)
    commands = ["set debuginfod enabled off", f"target remote :{served.address[1]}", "continue", "info symbol $pc"]
    argv = [tool("gdb"), "-nx", "-batch", *(word for line in commands for word in ("-ex", line))]
    running = subprocess.Popen([*argv, str(served.symbols.path)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    deadline = time.monotonic() + PATIENCE
    while served.debugger.position < 1000 and time.monotonic() < deadline:
        time.sleep(0.02)
    running.send_signal(signal.SIGINT)
    printed, _ = running.communicate(timeout=PATIENCE)
    assert b"received signal SIGINT, Interrupt." in printed
    assert re.search(rb"loops( \+ \d+)? in section .text", printed)


def test_a_second_gdb_is_told_so(serve, tool):
    served = serve(begin, once=False)
    first = served.client()
    assert first.ask("qC") == "QC1"
    refused = served.gdb(tool("gdb"), "info registers rip")
    assert "E.another gdb is connected; one at a time" in refused
    assert "rip  " not in refused
    first.close()
    assert "frameless" in served.gdb(tool("gdb"), "x/i $pc")


def test_kill_and_detach(serve, tool):
    served = serve(begin, once=False)
    assert "<frameless+2>" in served.gdb(tool("gdb"), "stepi", "x/i $pc", "detach")
    assert "<frameless+2>" in served.gdb(tool("gdb"), "x/i $pc", "kill")
    assert "<frameless>" in served.gdb(tool("gdb"), "x/i $pc")


def test_what_cannot_be_done_is_said(serve, tool):
    served = serve(begin)
    printed = served.gdb(
        tool("gdb"), "x/gx 0x10", "set var $cs = 1", "monitor nonsense", "set var *(char *)0x10 = 1",
        "set remote software-breakpoint-packet off", "break *leaf", "continue", "x/i $pc",
    )  # fmt: skip
    assert "Cannot access memory at address 0x10" in printed
    assert "cs of thread 1 can't be set" in printed
    assert "error: no command 'nonsense'; monitor help lists them" in printed
    assert "Cannot insert breakpoint 1." in printed
    assert "<frameless>" in printed
    assert served.kernel.machine.read(served.kernel.layout.text, 4096) == served.text


def test_changing_what_is_seen(serve, tool):
    served = serve(begin)
    printed = served.gdb(
        tool("gdb"), "set var $rdi = 9", "break *leaf", "continue", "set var $rdi = 40", "delete", "finish", "p $rax",
        "set var *(long *)$rsp = 7", "x/gx $rsp",
    )  # fmt: skip
    assert "$1 = 41\n" in printed
    assert ":\t0x0000000000000007\n" in printed
