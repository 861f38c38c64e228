"""``tramp gdb`` as a whole, and trampolines as gdb sees them."""

import contextlib
import os
import re
import signal
import socket
from pathlib import Path

import pytest

from gdb_transcript import ROOT, Process, Thread
from patience import PATIENCE
from trampoline.tools.cli import main

pytestmark = pytest.mark.slow

OBJECT = "tests/selftests/bpf_cookie.o"


@pytest.fixture
def target(tmp_path):
    with contextlib.ExitStack() as stack:

        def make(*argv: str, **options) -> Thread:
            found = Thread(argv, tmp_path, **options)
            stack.callback(found.close)
            return found

        yield make


def frames(printed: str) -> list[str]:
    """The functions of a backtrace, innermost first."""
    return re.findall(r"^#\d+ +0x\w+ in (\S+) \(\)$", printed, re.MULTILINE)


@pytest.mark.parametrize("flavour", ["6.1", "6.12", "7.2"])
def test_a_backtrace_through_a_trampoline(target, tool, flavour):
    served = target("bpf_fentry_test6", "--fentry", "--fexit", "--flavour", flavour)
    printed = served.session(
        tool("gdb"),
        ["target remote :0", "break *bpf_prog_fexit1", "continue", "backtrace", "break *bpf_fentry_test1", "delete",
         "tbreak __bpf_prog_exit_recur", "continue", "backtrace"],
    )  # fmt: skip
    found = frames(printed)
    site = ["bpf_fentry_test6"] if flavour != "7.2" else []
    assert found[0] == "bpf_prog_fexit1"
    assert found[1].startswith("bpf_trampoline_")
    assert found[2 : 3 + len(site)] == [*site, "tramplab_return"]
    assert found[3 + len(site)] == "__bpf_prog_exit_recur"
    assert found[4 + len(site) :] == found[1 : 3 + len(site)]


def test_a_caller_whose_return_address_is_gone(target, tool):
    served = target("bpf_fentry_test1", "--fexit", "--design", "specialised")
    printed = served.session(
        tool("gdb"), ["target remote :0", "break *bpf_prog_fexit0", "continue", "backtrace", "finish", "monitor frame"]
    )
    assert frames(printed) == ["bpf_prog_fexit0", "tramplab_caller_1_fexit0", "tramplab_return"]
    assert "return value" in printed


def test_calling_a_function_from_gdb(target, tool):
    served = target("bpf_fentry_test2", "--fexit", "--call", "bpf_fentry_test2(40, 2)")
    printed = served.session(
        tool("gdb"),
        ["target remote :0", "break *bpf_prog_fexit0", "continue", "delete",
         "print ((int (*)(int))bpf_fentry_test1)(5)", "backtrace", "continue"],
    )  # fmt: skip
    assert "$1 = 6\n" in printed
    assert frames(printed)[0] == "bpf_prog_fexit0"
    assert "thread 1, bpf_fentry_test2(40, 2), returned 0x2a\n" in printed


def test_an_object(target, tool):
    served = target(str(ROOT / OBJECT))
    assert served.lines[0] == "bpf_cookie.o, kernel 7.2, design per-function"
    printed = served.session(
        tool("gdb"), ["target remote :0", "monitor next program", "continue", "backtrace", "monitor code"]
    )
    assert frames(printed)[0].startswith("bpf_prog_")
    assert "=> " in printed
    assert re.search(r"; .*bpf_cookie\.c:\d+", printed), "source lines"


def test_monitor_of_trampolines(target, tool):
    served = target("int f(int a, long b)", "--fentry", "--func-ip", "--call", "f(-1, 2)")
    printed = served.session(
        tool("gdb"), ["target remote :0", "monitor next program", "continue", "monitor frame 1", "monitor frame 9",
                      "monitor frame x", "monitor help", "monitor code", "continue", "monitor frame"],
    )  # fmt: skip
    for words in ("arg1  ; int a", "arg2  ; long b", "nr_args", "ip", "saved rbx"):
        assert re.search(rf"  {words}\b", printed), words
    assert "error: no frame 9: there are 0 to 2" in printed
    assert "error: no frame x: there are 0 to 2" in printed
    assert printed.endswith("error: no frames: the thread has ended\n")
    assert "\nframe [LEVEL] " in printed
    assert re.search(r"=> 0x\w+  - +xor eax, eax", printed)


def test_symbols_of_what_comes_and_goes(target, tool, tmp_path):
    file = tmp_path / "k.elf"
    served = target("bpf_fentry_test1", "--fexit", "--live", symbols=file)
    before = file.read_bytes()
    printed = served.session(
        tool("gdb"),
        ["target remote :0", "info symbol 0xffffffffc0002040", "thread 2", "monitor next patch", "continue",
         "monitor symbols", f"symbol-file {file}", "info symbol 0xffffffffc0002040", "monitor goto 2", "continue",
         f"symbol-file {file}", "info symbol 0xffffffffc0002040"],
    )  # fmt: skip
    assert f"read it again with: symbol-file {file}\n" in printed
    assert printed.count(f"the symbols have changed: symbol-file {file}\n") == 2
    assert printed.count("No symbol matches 0xffffffffc0002040.") == 2
    assert re.search(r"bpf_trampoline_\d+ in section .modules", printed)
    assert file.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["k.elf", "script.gdb"]


def test_symbols_that_can_no_longer_be_written(target, tool, tmp_path):
    file = tmp_path / "place" / "k.elf"
    file.parent.mkdir()
    served = target("bpf_fentry_test1", "--fexit", "--live", symbols=file)
    file.unlink()
    file.parent.rmdir()
    printed = served.session(
        tool("gdb"), ["target remote :0", "thread 2", "monitor next patch", "continue", "monitor symbols", "x/i $pc"]
    )
    assert f"the symbols have changed, but {file} cannot be written: No such file or directory\n" in printed
    assert f"\nerror: {file}: No such file or directory\n" in printed
    assert "(gdb) x/i $pc" in printed


def test_the_temporary_symbol_file_goes(target, tool):
    served = target("bpf_fentry_test1")
    path = Path(served.symbols)
    assert path.stat().st_size > 1000
    served.session(tool("gdb"), ["target remote :0", "stepi"])
    served.thread.join(timeout=PATIENCE)
    assert not path.exists()


def test_an_address_of_the_other_family(target, tool):
    try:
        with socket.socket(socket.AF_INET6) as tried:
            tried.bind(("::1", 0))
    except OSError:
        pytest.skip("no IPv6 here")
    served = target("bpf_fentry_test1", host="::1")
    assert served.host == "[::1]"
    assert "<bpf_fentry_test1>" in served.session(tool("gdb"), ["target remote :0", "x/i $pc"])


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_server(tmp_path, number, status):
    served = Process(["bpf_fentry_test1"], tmp_path)
    try:
        served.process.send_signal(number)
        assert served.process.wait(timeout=PATIENCE) == status
        assert served.process.stderr.read() == ""
        assert not Path(served.symbols).exists()
    finally:
        served.close()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--port", "70000"], "'70000' is not a port: 0 to 65535"),
        (["--host", "0.0.0.0"], "0.0.0.0 is not loopback: "),
        (["--host", "192.0.2.1"], "192.0.2.1 is not loopback: "),
        (["--host", "example.org"], "'example.org' is not an address: use 127.0.0.1 or ::1"),
        (["--symbols", "/nowhere/at/all.elf"], "/nowhere/at/all.elf: No such file or directory"),
        (["--symbols", "/dev/null"], "/dev/null: not a regular file"),
        (["--flavour", "5.0"], "5.0"),
        (["--call", "bpf_fentry_test1("], "is not a call"),
    ],
)
def test_what_cannot_be_served(argv, message, capsys):
    assert main(["gdb", "bpf_fentry_test1", *argv]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("tramp gdb: ")
    assert printed.err.count("\n") == 1
    assert message in printed.err
    assert "gdb -ex" not in printed.out


def test_a_port_that_is_taken(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["gdb", "bpf_fentry_test1", "--port", str(port)]) == 2
    assert capsys.readouterr().err == f"tramp gdb: 127.0.0.1 port {port}: Address already in use\n"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_is_not_ours(tmp_path, capsys):
    tmp_path.chmod(0o500)
    assert main(["gdb", "bpf_fentry_test1", "--symbols", str(tmp_path / "k.elf")]) == 2
    assert "Permission denied" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
