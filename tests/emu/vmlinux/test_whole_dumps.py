"""Whole dumps of booted machines, where there are some: what is attached, other tasks, new programs inside."""

import struct
from dataclasses import replace
from functools import cache

import pytest

from emu.vmlinux.dump_notes import CpuState
from emu.vmlinux.machine_errors import KernelDied, WouldSleep
from emu.vmlinux.memory_image import BadArgument, LockHeld, MemoryImage, NoTask
from emu.vmlinux.system_calls import AttachType, ProgType
from real_cores import CORES

DUMPS = sorted((CORES / "whole").glob("*")) if (CORES / "whole").is_dir() else []
HOW = "no whole dumps: put QEMU's dump-guest-memory of a machine into ../shared/cores/whole, or set TRAMPLAB_CORES"
pytestmark = pytest.mark.skipif(not DUMPS, reason=HOW)
_RETURN_0 = struct.pack("<BBhiBBhi", 0xB7, 0, 0, 0, 0x95, 0, 0, 0)
_FUNCTION = "int_pow"


@cache
def _opened(path):
    return MemoryImage(path)


@pytest.fixture(params=DUMPS, ids=[path.name for path in DUMPS])
def image(request):
    opened = _opened(request.param)
    opened.reset()
    opened.find_code()
    return opened


@pytest.fixture
def inside(image):
    """System calls of a process."""
    image.become(_process(image))
    if image.holds_runqueue:
        with pytest.raises(LockHeld, match="runqueue"):
            image.system_calls()
        pytest.skip("the dump was taken inside the scheduler")
    return image.system_calls()


def _process(image):
    """A task that is a process."""
    mm = image.kernel.layout.offset("task_struct", "mm")
    return next(task.pid for task in image.kernel.tasks() if image.memory.u64(task.address + mm))


def test_every_link_is_read(image):
    found = image.attachments()
    assert image.gaps == []
    symbols = image.kernel.symbols
    for one in found:
        assert one.link
        assert one.program.id
        if one.function is not None:
            assert symbols[one.function] <= one.address < symbols[one.function] + 64


def test_every_cpu_gives_the_same_value(image):
    count = len(image.kernel.dump.cpus)
    values = [MemoryImage(image.kernel.dump, cpu=cpu).call("int_pow", 3, 4).rax for cpu in range(count)]
    assert values == [81] * count


def test_a_program_attaches_runs_and_detaches_inside(image, inside):
    start = image.kernel.symbols[_FUNCTION]
    before, code = image.call(_FUNCTION, 3, 4), image.memory.read(start, 16)
    links = len(image.attachments())
    target = image.kernel.layout.function(_FUNCTION)
    verdict = inside.load_program(_RETURN_0, ProgType.TRACING, AttachType.TRACE_FENTRY, target, name="inside")
    assert verdict.is_loaded
    link = inside.create_link(verdict.fd, AttachType.TRACE_FENTRY)
    image.find_code()
    image.keep()
    run = image.call(_FUNCTION, 3, 4)
    assert run.rax == 81
    assert run.instructions > before.instructions
    assert any(name.endswith("_inside") for name in run.totals)
    added = [one for one in image.attachments() if one.program.name == "inside"]
    assert [(one.way, one.function) for one in added] == [("fentry", _FUNCTION)]
    assert image.kernel.code.function(added[0].trampoline).startswith("bpf_trampoline_")
    image.restore(image.checkpoint())
    inside.close(link)
    inside.close(verdict.fd)
    inside.run_put_off_work()
    assert len(image.attachments()) == links
    assert image.memory.read(start, 16) == code
    image.find_code()
    image.keep()
    assert image.call(_FUNCTION, 3, 4).program_counters == before.program_counters


def test_a_refused_program_has_the_kernels_own_log(inside):
    verdict = inside.load_program(_RETURN_0[8:], ProgType.SOCKET_FILTER, log_level=1)
    assert verdict.errno == 13
    assert "R0 !read_ok" in verdict.log


def test_the_kernels_own_fixup_answers_a_page_fault(image):
    run = image.call("copy_from_kernel_nofault", "zero:8", 0xFFFF_F000_0000_0010, 8)
    assert run.rax == (1 << 64) - 14
    assert [one.vector for one in run.exceptions] == [14]
    assert "fixup_exception" in run.totals


def test_an_oops_a_panic_and_a_wait_end_the_call_and_nothing_more(image):
    for call, error, says in (
        (lambda: image.call("strlen", 0x10), KernelDied, "page fault at strlen.*, which accessed 0x10"),
        (lambda: image.call("panic", "over"), KernelDied, r"panic\(\) was called"),
        (lambda: image.call("msleep", 10), WouldSleep, "msleep"),
    ):
        with pytest.raises(error, match=says):
            call()
        assert image.call("int_sqrt", 144).rax == 12


def test_a_warning_is_a_message(image):
    run = image.call("refcount_warn_saturate", "zero:64", 0, warm=False)
    assert any("lib/refcount.c" in message.text for message in run.messages)


def test_the_page_tables_are_found_without_vmcoreinfo_and_without_qemus_notes(image):
    dump = image.kernel.dump
    bare = CpuState({"cs": 0x10, "rip": 0, "rsp": 0})
    for other in (replace(dump, info=None), replace(dump, cpus=(bare,)), replace(dump, cpus=())):
        with_less = MemoryImage(other)
        assert with_less.kernel.release == image.kernel.release
        assert with_less.call("int_sqrt", 144).rax == 12
        with_less.machine.close()


def test_what_there_is_not_is_said(image):
    with pytest.raises(NoTask, match="no task 'nobody_here'"):
        image.become("nobody_here")
    with pytest.raises(BadArgument, match="room for 2488"):
        image.call("strlen", "zero:4000")
