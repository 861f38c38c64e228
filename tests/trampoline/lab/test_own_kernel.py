"""Real kernels in the lab: programs of text and of objects, maps, links, calls; memory images by the same verbs."""

import errno

import pytest
from real_kernels import kernel_folder

from emu.vmlinux.errors import ImageError, NoSymbol
from emu.vmlinux.system_calls import Refused
from emu.vmlinux.unbooted_kernel import UnbootedKernel
from paths import ROOT
from real_cores import CORES, HOW
from trampoline.bpf.errors import ObjectError, TrampolineError
from trampoline.lab.own_kernel import StockKernel, open_kernel

SELFTESTS = ROOT / "tests" / "selftests"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("prepared")


@pytest.fixture(scope="module", params=["6.1", "6.12", "7"])
def opened(request, cache):
    with open_kernel(kernel_folder(request.param), cache=cache) as kernel:
        kernel.name = request.param
        yield kernel


@pytest.fixture
def kernel(opened):
    with opened.trial():
        yield opened


def test_the_programs_of_a_selftest_see_what_they_see_on_a_booted_kernel(kernel):
    for name, saw in (("fentry_test", "saw"), ("fexit_test", "saw")):
        with kernel.open(SELFTESTS / f"{name}.o") as loaded:
            loaded.attach_all()
            assert kernel.value("bpf_fentry_test1", kernel.call("bpf_fentry_test1", 1)) == 2
            assert kernel.value("bpf_fentry_test2", kernel.call("bpf_fentry_test2", 2, 3)) == 5
            assert kernel.call("bpf_fentry_test8", "zero:64").rax == 0
            assert [loaded.data[f"{saw}{n}"] for n in (1, 2, 3)] == [1, 1, 0]
            loaded.data["saw1"] = 7
            assert loaded.data["saw1"] == 7


def test_closing_an_object_leaves_nothing_attached(kernel):
    before = kernel.call("bpf_fentry_test1", 1).by_function
    with kernel.open(SELFTESTS / "fentry_test.o") as loaded:
        loaded.attach_all()
        assert kernel.call("bpf_fentry_test1", 1).by_function != before
    assert kernel.call("bpf_fentry_test1", 1).by_function == before


@pytest.mark.parametrize(
    ("section", "ways"),
    [
        ("fentry/bpf_fentry_test1", "6.1 6.12 7"),
        ("fexit/bpf_fentry_test1", "6.1 6.12 7"),
        ("kprobe/bpf_fentry_test1", "6.1 6.12 7"),
        ("kretprobe/bpf_fentry_test1", "6.1 6.12 7"),
        ("kprobe.multi/bpf_fentry_test1", "6.12 7"),
        ("kretprobe.multi/bpf_fentry_test?", "6.12 7"),
        ("kprobe.session/bpf_fentry_test1", "6.12 7"),
        ("fsession/bpf_fentry_test1", "7"),
        ("fentry.multi/bpf_fentry_test1", "7"),
    ],
)
def test_a_program_of_text_runs_where_its_section_says(kernel, section, ways):
    if kernel.name not in ways.split():
        with pytest.raises(Refused, match=r"EINVAL|ENOTSUP|E2BIG"):
            kernel.attach(kernel.prog(section))
        return
    before = kernel.call("bpf_fentry_test1", 1)
    link = kernel.attach(kernel.prog(section))
    with_program = kernel.call("bpf_fentry_test1", 1)
    assert any(name.startswith("bpf_prog_") for name, _ in with_program.by_function)
    assert with_program.rax == before.rax
    kernel.detach(link)
    assert kernel.call("bpf_fentry_test1", 1).by_function == before.by_function


@pytest.mark.parametrize("section", ["raw_tp/task_rename", "tp_btf/task_rename", "tp/task/task_rename"])
def test_programs_at_a_tracepoint(kernel, section):
    kernel.attach(kernel.prog(section))
    run = kernel.call("__set_task_comm", "current", "renamed", 0)
    assert any(name.startswith("bpf_prog_") for name, _ in run.by_function)


def test_a_refused_program_has_the_kernels_errno_and_log(kernel):
    with pytest.raises(Refused, match="R0 !read_ok") as caught:
        kernel.prog("socket", "exit")
    assert caught.value.errno == errno.EACCES
    with pytest.raises(NoSymbol, match="no_such_function"):
        kernel.attach(kernel.prog("kprobe.multi/no_such_function*"))
    with pytest.raises(TrampolineError, match="to what"):
        kernel.attach(kernel.prog("kprobe"))
    with pytest.raises(ObjectError, match="tramplab_sleeps"):
        kernel.open(SELFTESTS / "fexit_sleep.o")


def test_an_objects_question_for_the_version_has_the_packages_answer(kernel):
    version = kernel.kconfig()["LINUX_KERNEL_VERSION"]
    assert {"6.1": 0x601, "6.12": 0x60C, "7": 0x702}[kernel.name] == version >> 8
    assert kernel.kconfig()["CONFIG_BPF_SYSCALL"] == "y"
    assert version & 0xFF


def test_extern_functions_and_variables_of_an_object(kernel):
    if kernel.name == "6.1":
        pytest.skip("6.1 has no fmod_ret on the functions of get_func_ip.o")
    with kernel.open(SELFTESTS / "get_func_ip.o") as loaded:
        loaded.attach_all()
        kernel.call("bpf_fentry_test1", 1)
        assert (loaded.data["entry_ok"], loaded.data["entry_ip"]) == (1, kernel.symbols["bpf_fentry_test1"])


def test_the_file_says_what_it_is(tmp_path, cache):
    if not (CORES / "mini").is_dir():
        pytest.skip(HOW)
    with open_kernel(CORES / "mini" / "612-A.core.xz") as image:
        assert image.is_memory_image
        assert image.value("bpf_fentry_test1", image.call("bpf_fentry_test1", 1, warm=True)) == 2
    (tmp_path / "vmlinuz").write_bytes(b"no kernel")
    with pytest.raises(ImageError, match="a CPU and a task are chosen in memory images"):
        open_kernel(tmp_path / "vmlinuz", cpu=1, cache=cache)


def test_a_stock_kernel_is_the_unbooted_one(opened):
    assert isinstance(opened, StockKernel)
    assert isinstance(opened.unbooted, UnbootedKernel)
    assert opened.traceable["bpf_fentry_test1"] == opened.symbols["bpf_fentry_test1"]
    assert len(opened.traceable) > 10_000
