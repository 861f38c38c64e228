
import pytest

from emu.kernel.errors import KernelError
from paths import SELFTEST_FOLDER
from trampoline.bpf.errors import TrampolineError
from trampoline.lab import Workload, open_workload
from trampoline.tools.cli import Parser
from trampoline.tools.commands._options import add_workload, workload_of

OBJECTS = SELFTEST_FOLDER


def options(*argv: str) -> Workload:
    parser = Parser()
    add_workload(parser)
    return workload_of(parser.parse_args(argv))


def made(ready) -> list[int]:
    return [ready.call(call).value for call in ready.calls]


class Recorder:
    def __init__(self) -> None:
        self.threads: list[tuple] = []

    def call(self, function, *args, stack_args=(), cpu=0, name=""):
        self.threads.append((name, args, tuple(stack_args), cpu))

    def operation(self, name, do):
        self.threads.append((name, do))


def test_a_function_with_its_programs_and_calls():
    calls = ("--call", "bpf_fentry_test2(2, 3)", "--call", "bpf_fentry_test1(7)")
    with open_workload(options("bpf_fentry_test2", "--fexit", "--fentry", *calls)) as ready:
        assert [link.program.name for link in ready.links] == ["fexit0", "fentry1"]
        assert [(call.text, call.cpu) for call in ready.calls] == [
            ("bpf_fentry_test2(2, 3)", 0), ("bpf_fentry_test1(7)", 1),
        ]  # fmt: skip
        assert made(ready) == [5, 8]
        assert ready.title == "bpf_fentry_test2, kernel 6.12, design per-function"
        threads = Recorder()
        ready.begin(threads)
        assert threads.threads == [("bpf_fentry_test2(2, 3)", (2, 3), (), 0), ("bpf_fentry_test1(7)", (7,), (), 1)]


def test_without_calls_the_target_is_called():
    with open_workload(options("int f(int a, void *p, long b)")) as ready:
        assert [call.text for call in ready.calls] == ["f(1, &2, 3)"]
        assert ready.lab.kernel.machine.read_u64(ready.calls[0].registers[1]) == 2
        assert made(ready) == [0]


@pytest.mark.parametrize("design", ["specialised", "tracing-multi-v2"])
def test_designs(design):
    with open_workload(options("bpf_fentry_test1", "--design", design, "--call", "bpf_fentry_test1(41)")) as ready:
        before = ready.lab.call("bpf_fentry_test3", 1, 2, 3).counts.instructions
        called = ready.call(ready.calls[0])
        assert called.value == 42
        assert called.counts.instructions > 5 * before


def test_an_object():
    with open_workload(options(str(OBJECTS / "fentry_test.o"))) as ready:
        assert [call.text for call in ready.calls] == ["bpf_fentry_test1(1)"]
        assert made(ready) == [2]
        assert ready.loaded.data["saw1"] == 1
        assert ready.title == "fentry_test.o, kernel 7.2, design per-function"


def test_the_cpu_of_a_call():
    calls = ("bpf_fentry_test1(1)@1", "bpf_fentry_test1(2) @ 0")
    with open_workload(Workload("bpf_fentry_test1", calls=calls)) as ready:
        assert [call.cpu for call in ready.calls] == [1, 0]
        assert len(ready.lab.kernel.machine.vcpus) == 2


def test_live_programs_are_attached_by_operations():
    with open_workload(Workload("bpf_fentry_test1", programs=("fexit",), live=True)) as ready:
        assert ready.links == []
        threads = Recorder()
        ready.begin(threads)
        name, do = threads.threads[-1]
        assert name == "attach fexit0"
        do()
        assert [link.program.name for link in ready.links] == ["fexit0"]
        assert made(ready) == [2]


def test_calls_one_after_the_other_are_on_cpu_0():
    calls = tuple(f"bpf_fentry_test1({n})" for n in range(9))
    with open_workload(Workload("bpf_fentry_test1", calls=(*calls, "bpf_fentry_test1(9)@1"), parallel=False)) as ready:
        assert [call.cpu for call in ready.calls] == [0] * 9 + [1]
        assert made(ready) == list(range(1, 11))


def test_a_path_is_an_object_whatever_its_name():
    assert Workload(SELFTEST_FOLDER / "fentry_test").is_object
    assert not Workload("fentry_test").is_object
    with open_workload(Workload(OBJECTS / "fentry_test.o", calls=(), live=True)) as ready:
        assert ready.calls == ()
        ready.attach()
        assert "test1 (fentry) on bpf_fentry_test1" in list(ready.attached())


@pytest.mark.parametrize(
    ("wanted", "error", "message"),
    [
        (Workload("nothing_there"), KernelError, "nothing_there"),
        (Workload("bpf_fentry_test1", calls=("bpf_fentry_test1",)), TrampolineError, "is no call"),
        (Workload("bpf_fentry_test1", calls=("bpf_fentry_test1()",)), TrampolineError, "takes 1 arguments, not 0"),
        (Workload("bpf_fentry_test1", calls=("bpf_fentry_test1(1)@8",)), TrampolineError, "no 8"),
        (Workload("bpf_fentry_test1", names=("a",)), TrampolineError, "--program"),
        (Workload("bpf_fentry_test1", cookies={"a": 1}), TrampolineError, "no program a"),
        (Workload(str(OBJECTS / "fentry_test.o"), programs=("fmod_ret",)), TrampolineError, "--fmod-ret"),
        (Workload(str(OBJECTS / "fentry_test.o"), cookies={"a": 1}), TrampolineError, "no program a"),
        (Workload("bpf_fentry_test1", flavour="5.0"), TrampolineError, "5.0"),
    ],
)  # fmt: skip
def test_what_cannot_be_looked_at(wanted, error, message):
    with pytest.raises(error, match=message), open_workload(wanted):
        pass


def test_a_cookie_is_a_number(capsys):
    with pytest.raises(SystemExit):
        options("bpf_fentry_test1", "--cookie", "x")
    assert "'x' is not a number" in capsys.readouterr().err
