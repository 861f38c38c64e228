"""Real kernels, unbooted: every way in, what they leave, what the floor catches. Counts are of Debian's packages."""

import errno
import hashlib
import struct
import time

import pytest

from emu.vmlinux import prepared_state
from emu.vmlinux.cpu_model import CPUS, PLAIN
from emu.vmlinux.errors import NoSymbol, VmlinuxError
from emu.vmlinux.floor.memory import allocate
from emu.vmlinux.floor.state import TEXT_NEXT
from emu.vmlinux.machine_errors import KernelDied, NotHosted, StateUnusable, WouldSleep
from emu.vmlinux.system_calls import AttachType, Command, ProgType, Refused
from emu.vmlinux.unbooted_kernel import UnbootedKernel
from emu.vmlinux.ways import RETURN_0, WAYS, rows

THREE = ["6.1", "6.12", "7"]
EVERY = [*THREE, "6.12-full", "6.12-rt", "7-full", "7-rt"]
_COSTED = (
    "fentry", "fexit", "fmodret", "rawtp", "kprobe", "kprobe-int3", "kretprobe", "kprobe-multi", "kretprobe-multi",
    "fsession", "kprobe-session", "fentry-multi", "fexit-multi", "fsession-multi",
)  # fmt: skip
COSTS = {
    # Instructions with one program that returns 0, its own included, less those without; None: the kernel refuses.
    "6.1": dict(zip(_COSTED, (123, 178, None, 67, 338, 676, 574, *[None] * 7), strict=True)),
    "6.12": dict(zip(_COSTED, (129, 190, 196, 84, 356, 677, 631, 260, 533, None, 672, *[None] * 3), strict=True)),
    "7": dict(zip(_COSTED, (107, 162, 168, 114, 309, 623, 601, 247, 697, 262, 810, 107, 162, 262), strict=True)),
}
TRAMPOLINE_COSTS = {"6.1": (117, 172), "6.12": (121, 182), "7": (99, 154)}
"""T of fentry and fexit: what images of the same kernels, booted, give call by call."""
LOAD_BAD_POINTER = bytes.fromhex("b701000001000000" + "7910000000000000" + "9500000000000000")
NO_RETURN_VALUE = bytes.fromhex("9500000000000000")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def kernel(request, opened):
    found = opened(request.param)
    with found.trial():
        yield found


each = pytest.mark.parametrize("kernel", THREE, indirect=True, ids=lambda name: name)
one = pytest.mark.parametrize("kernel", ["6.12"], indirect=True, ids=lambda name: name)


@pytest.mark.parametrize("name", THREE)
def test_every_way_in_costs_what_it_costs_on_this_kernel(name, opened):
    measured = {row.way: row for row in rows(opened(name))}
    assert {way: measured[way].instructions for way in COSTS[name]} == COSTS[name]
    assert {row.way for row in measured.values() if row.refused} == {
        w for w, cost in COSTS[name].items() if cost is None
    }
    assert list(measured) == [way.name for way in WAYS]
    assert all(row.further < 2 * row.instructions for row in measured.values() if row.instructions)


@pytest.mark.parametrize("name", EVERY[3:])
def test_kernels_that_no_line_was_written_for(name, opened):
    measured = {row.way: row.instructions for row in rows(opened(name), ("fentry", "fexit", "kprobe", "rawtp"))}
    assert all(measured.values()), measured
    assert measured["fentry"] < measured["fexit"] < measured["kprobe"]


@each
def test_the_trampolines_cost_is_that_of_the_booted_kernel(kernel, request):
    costs = []
    for attach_type in (AttachType.TRACE_FENTRY, AttachType.TRACE_FEXIT):
        program = kernel.load(RETURN_0, ProgType.TRACING, attach_type, "bpf_fentry_test1")
        link = kernel.attach(program)
        run = kernel.call("bpf_fentry_test1", 41)
        costs.append((run.rax, run.way_in))
        kernel.detach(link)
        kernel.unload(program)
    fentry, fexit = TRAMPOLINE_COSTS[request.node.callspec.params["kernel"]]
    assert costs == [(42, fentry), (42, fexit)]


@each
def test_attach_and_detach_leave_the_text_and_the_heap_as_they_were(kernel):
    def once() -> tuple[bytes, bytes, list[int]]:
        program = kernel.load(RETURN_0, ProgType.TRACING, AttachType.TRACE_FEXIT, "bpf_fentry_test2")
        link = kernel.attach(program)
        attached = kernel.site("bpf_fentry_test2")
        kernel.detach(link)
        kernel.unload(program)
        return attached, kernel.site("bpf_fentry_test2"), sorted(kernel.live_objects().values())

    before = kernel.site("bpf_fentry_test2")
    first, second = once(), once()
    assert first[0] != before
    assert first[1] == second[1] == before
    assert second[2] == first[2]  # what the first time allocates for good (a program pack) is not allocated again


@each
def test_a_refused_program_has_the_verifiers_own_words(kernel):
    verdict = kernel.verify(NO_RETURN_VALUE, ProgType.SOCKET_FILTER)
    assert (verdict.errno, verdict.is_loaded) == (errno.EACCES, False)
    assert "R0 !read_ok" in verdict.log
    with pytest.raises(Refused, match="EACCES"):
        kernel.load(LOAD_BAD_POINTER, ProgType.SOCKET_FILTER)
    assert kernel.verify(RETURN_0, ProgType.SOCKET_FILTER).is_loaded


@each
def test_maps_by_the_system_call(kernel):
    array = kernel.calls.create_map(2, 4, 8, 4)
    kernel.calls.update(array, struct.pack("<I", 3), b"12345678")
    assert kernel.calls.look_up(array, struct.pack("<I", 3), 8) == b"12345678"
    assert kernel.calls.look_up(array, struct.pack("<I", 4), 8) is None
    ring = kernel.calls.create_map(27, 0, 0, 4096)  # its pages are mapped twice
    assert ring not in (array, -1)
    with pytest.raises(Refused, match="EINVAL"):
        kernel.calls.create_map(2, 3, 8, 4)


@one
def test_a_wrong_descriptor_is_the_kernels_own_error(kernel):
    assert kernel.calls.bpf(Command.LINK_CREATE, struct.pack("<IIII", 99, 0, 24, 0), 64) == -errno.EBADF
    with pytest.raises(NoSymbol, match="no_such_function"):
        kernel.load(RETURN_0, ProgType.TRACING, AttachType.TRACE_FENTRY, "no_such_function")


@one
def test_misused_memory_ends_the_kernel_and_a_checkpoint_brings_it_back(kernel):
    before = kernel.checkpoint()
    address = allocate(kernel.machine, 100)
    kernel.machine.call("kfree", address)
    with pytest.raises(KernelDied, match=f"double free: {address:#x}"):
        kernel.machine.call("kfree", address)
    with pytest.raises(StateUnusable):
        kernel.machine.call("kfree", address)
    kernel.restore(before)
    with pytest.raises(KernelDied, match="free of what was not allocated"):
        kernel.machine.call("kfree", kernel.address("init_task"))
    kernel.restore(before)
    address = allocate(kernel.machine, 100)
    kernel.machine.call("kfree", address)
    assert kernel.machine.memory.read(address + 8, 120) == b"\x6b" * 120
    kernel.machine.memory.write(address + 16, b"\0")
    with pytest.raises(KernelDied, match="write after free"):
        kernel.machine.call("vfree", kernel.machine.call("kmemdup_noprof", kernel.address("init_task"), 100, 0xCC0))
    kernel.restore(before)
    assert kernel.call("bpf_fentry_test1", 1).rax == 2


@one
def test_what_the_floor_has_nothing_for_is_named(kernel):
    before = kernel.checkpoint()
    with pytest.raises(NotHosted, match="filp_open"):
        kernel.machine.call("filp_open", 0, 0, 0)
    kernel.restore(before)
    with pytest.raises(WouldSleep):
        kernel.machine.call("schedule_timeout_uninterruptible", 100)
    kernel.restore(before)
    with pytest.raises(KernelDied, match="oops"):
        kernel.machine.call("bpf_prog_inc", 0x1234)


@one
def test_grace_periods_wait_for_readers(kernel):
    program = kernel.load(RETURN_0, ProgType.TRACING, AttachType.TRACE_FENTRY, "bpf_fentry_test1")
    link = kernel.attach(program)
    kernel.calls.close(link.fd)
    assert kernel.machine.deferred
    with pytest.raises(VmlinuxError, match="drain"):
        kernel.checkpoint()
    kernel.machine.call("__rcu_read_lock")
    with pytest.raises(VmlinuxError, match="read-side"):
        kernel.drain()
    kernel.machine.call("__rcu_read_unlock")
    assert kernel.drain() > 0
    assert not kernel.machine.deferred


@one
def test_text_that_is_given_back_is_used_again(kernel):
    def load_and_unload() -> int:
        kernel.unload(kernel.load(RETURN_0, ProgType.SOCKET_FILTER))
        return kernel.machine.memory.u64(TEXT_NEXT)

    assert load_and_unload() == load_and_unload()


@one
def test_one_changed_instruction_shows_as_exactly_that(kernel):
    def cost() -> int:
        return next(rows(kernel, ("fentry",))).instructions

    plain = cost()
    # ret at once instead of the statistics of a program: a patched kernel.
    kernel.machine.write_text(kernel.address("update_prog_stats"), b"\x90\x90\x90\xc3")
    assert cost() != plain


def _state(kernel: UnbootedKernel) -> str:
    program = kernel.load(RETURN_0, ProgType.TRACING, AttachType.TRACE_FEXIT, "bpf_fentry_test1")
    link = kernel.attach(program)
    kernel.call("bpf_fentry_test1", 1)
    kernel.detach(link)
    whole = hashlib.sha256()
    for page, content in sorted(kernel.machine.memory.memory.changed_pages().items()):
        if any(content):
            whole.update(page.to_bytes(8, "little") + content)
    return whole.hexdigest()


def test_two_starts_end_in_the_same_memory(kernel_folder):
    states = []
    for _ in range(2):
        with UnbootedKernel.open(kernel_folder("6.12"), cache=False) as kernel:
            states.append(_state(kernel))
    assert states[0] == states[1]


def test_the_prepared_state_is_the_initialised_one_and_a_damaged_one_is_made_anew(kernel_folder, tmp_path):
    folder = kernel_folder("6.1")
    with UnbootedKernel.open(folder, cache=tmp_path) as kernel:
        fresh = [(row.way, row.instructions) for row in rows(kernel, ("fentry", "kprobe"))]
        release = kernel.release
    place = prepared_state.place_of(next(folder.glob("boot/vmlinuz-*")), tmp_path, 1, f"{PLAIN!r} ")
    assert (place / "memory").is_file()
    started = time.perf_counter()
    with UnbootedKernel.open(folder, cache=tmp_path) as kernel:
        elapsed = time.perf_counter() - started
        assert [(row.way, row.instructions) for row in rows(kernel, ("fentry", "kprobe"))] == fresh
        assert kernel.release == release
    assert elapsed < 5  # 0.3 s on an idle machine; an initialisation takes several times as long
    with open(place / "memory", "r+b") as memory:
        memory.seek(0x100000)
        memory.write(b"\xcc")
    assert prepared_state.load(place, 1) is None
    assert not place.exists()


@pytest.mark.parametrize(
    ("name", "cpu", "command_line", "said", "thunk"),
    [
        ("6.12", "zen2", "", "RETBleed: Mitigation: untrained return thunk", "retbleed_return_thunk"),
        ("6.12", "zen2", "mitigations=off", "Speculative Store Bypass: Vulnerable", "__x86_return_thunk"),
        ("6.12", "skylake", "retbleed=stuff", "RETBleed: Mitigation: Stuffing", "call_depth_return_thunk"),
    ],
)
def test_mitigations_are_those_that_the_kernel_itself_selects(name, cpu, command_line, said, thunk, kernel_folder):
    with UnbootedKernel.open(kernel_folder(name), cpu=CPUS[cpu], command_line=command_line, cache=False) as kernel:
        assert any(said in line for line in kernel.machine.log), kernel.machine.log
        memory, symbols = kernel.machine.memory, kernel.machine.symbols
        assert symbols.describe(memory.u64(symbols["x86_return_thunk"])) == thunk
        cost = next(rows(kernel, ("fentry",))).instructions
        assert (cost == COSTS[name]["fentry"]) is (command_line == "mitigations=off")
