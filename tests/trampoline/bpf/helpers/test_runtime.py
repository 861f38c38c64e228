"""The helpers, called as programs call them: by their address in the kernel."""

from errno import E2BIG, EAGAIN, EFAULT, EINVAL, ERANGE

import pytest
from kernel_releases import RELEASES

from asm import AsmError
from emu.kernel.errors import KernelError
from emu.kernel.structs import task_struct
from trampoline.bpf.errors import TrampolineError
from trampoline.bpf.helpers.runtime.definition import GuestHelper, PythonHelper, python_helper
from trampoline.bpf.helpers.runtime.printing import parse
from trampoline.bpf.helpers.runtime.runtime import HELPERS, UnsupportedHelper
from trampoline.bpf.program import MapSpec
from trampoline.bpf.uapi import MapType
from trampoline.lab import Lab

U64 = 2**64 - 1


@pytest.fixture(scope="module", params=list(RELEASES))
def lab(request):
    with Lab(request.param, "lazy" if request.param == "7.2" else "voluntary", vcpus=2) as made:
        _ = made.runtime
        yield made


@pytest.fixture
def scratch(lab):
    """Guest memory of the test's own, and a way to fill it."""
    made = []

    def alloc(data):
        made.append(lab.kernel.slab.alloc(max(len(data), 1), "scratch", data))
        return made[-1]

    yield alloc
    for address in made:
        lab.kernel.slab.free(address)


@pytest.fixture
def call(lab):
    def called(name, *args, **options):
        value = lab.call(lab.runtime.address(name), *(arg & U64 for arg in args), **options).value
        return value - (value >> 63 << 64)

    return called


def test_names_are_there_once():
    names = [helper.name for helper in HELPERS]
    assert len(names) == len(set(names))


def test_where_a_program_runs(lab, call):
    task = task_struct.view(lab.kernel.machine, lab.kernel.current(lab.kernel.machine.vcpus[1]))
    assert call("bpf_get_current_pid_tgid", cpu=1) == task.tgid << 32 | task.pid
    for name in ("bpf_get_current_task", "bpf_get_current_task_btf"):
        assert call(name, cpu=1) & U64 == lab.kernel.current(lab.kernel.machine.vcpus[1])
    for name in ("bpf_get_smp_processor_id", "bpf_get_raw_cpu_id"):
        assert [call(name, cpu=cpu) for cpu in range(2)] == [0, 1]
    assert call("bpf_get_numa_node_id") == call("bpf_get_current_uid_gid") == 0


def test_time_is_virtual(lab, call):
    before, ticks = call("bpf_ktime_get_ns"), call("bpf_jiffies64")
    lab.kernel.advance_clock(12_000_000)
    assert call("bpf_ktime_get_ns") - before == 12_000_000
    assert call("bpf_jiffies64") - ticks == 3
    assert lab.kernel.machine.read_u64(lab.kernel.kallsyms.address("jiffies")) == call("bpf_jiffies64") & U64
    assert lab.runtime.now_ns == call("bpf_ktime_get_boot_ns")


def test_random_numbers_differ_and_repeat(lab, call):
    lab.runtime.random_state = 1
    first = [call("bpf_user_rnd_u32") for _ in range(4)]
    lab.runtime.random_state = 1
    assert [call("bpf_user_rnd_u32") for _ in range(4)] == first
    assert len(set(first)) == 4


def test_name_of_the_task(lab, call, scratch):
    buffer = scratch(b"x" * 16)
    assert call("bpf_get_current_comm", buffer, 16) == 0
    assert lab.kernel.machine.read(buffer, 16) == b"swapper/0".ljust(16, b"\0")
    assert call("bpf_get_current_comm", buffer, 4) == 0
    assert lab.kernel.machine.read(buffer, 4) == b"swa\0"


def test_arguments_of_the_traced_function(lab, call, scratch):
    # Function, count word, three arguments, return value; more above the count.
    words = [0xFFFFFFFF81000000, 1 << 63 | 2 << 8 | 3, 10, 20, 30, 99]
    ctx = scratch(b"".join(word.to_bytes(8, "little") for word in words)) + 16
    value = scratch(bytes(8))
    assert call("bpf_get_func_ip_tracing", ctx) & U64 == words[0]
    assert call("get_func_arg_cnt", ctx) == 3
    for number, expected in enumerate((10, 20, 30)):
        assert call("get_func_arg", ctx, number, value) == 0
        assert lab.kernel.machine.read_u64(value) == expected
    assert call("get_func_arg", ctx, 3, value) == -EINVAL
    assert call("get_func_arg", ctx, 1 << 32 | 1, value) == 0
    assert call("get_func_ret", ctx, value) == 0
    assert lab.kernel.machine.read_u64(value) == 99
    assert call("bpf_session_is_return", ctx) == 1
    assert call("bpf_session_cookie", ctx) & U64 == ctx - 16


def test_kernel_memory_that_is_not_there_reads_as_zero(lab, call, scratch):
    source, buffer = scratch(b"kernel memory\0more"), scratch(b"x" * 24)
    read = lab.kernel.machine.read
    assert call("bpf_probe_read_kernel", buffer, 13, source) == 0
    assert read(buffer, 14) == b"kernel memoryx"
    for missing in (0, 0xFFFFC8FF00000000, 0x1234567890ABCDEF):
        assert call("bpf_probe_read_kernel", buffer, 8, missing) == -EFAULT
        assert read(buffer, 9) == bytes(8) + b"e"
        assert call("bpf_probe_read_compat", buffer, 8, missing) == -EFAULT
    assert call("bpf_probe_read_user", buffer, 8, source) == -EFAULT
    assert call("bpf_probe_read_kernel_str", buffer, 24, source) == 14
    assert read(buffer, 14) == b"kernel memory\0"
    assert call("bpf_probe_read_kernel_str", buffer, 4, source) == 4
    assert read(buffer, 4) == b"ker\0"
    assert call("bpf_probe_read_kernel_str", buffer, 4, 8) == -EFAULT
    assert call("bpf_probe_read_kernel", buffer, 0, source) == 0


def test_strings(lab, call, scratch):
    one, other = scratch(b"abc\0x"), scratch(b"abd\0")
    assert call("bpf_strncmp", one, 4, other) == -1
    assert call("bpf_strncmp", other, 4, one) == 1
    assert call("bpf_strncmp", one, 2, other) == 0
    assert call("bpf_strcmp", one, other) == -1
    assert call("bpf_strcmp", one, one) == 0
    assert call("bpf_strcmp", one, 8) == -EFAULT


@pytest.mark.parametrize(
    ("name", "text", "base", "taken", "value"),
    [
        ("bpf_strtol", b"-42 rest", 0, 3, -42 & U64),
        ("bpf_strtol", b"  0x1F", 0, 6, 31),
        ("bpf_strtol", b"017", 0, 3, 15),
        ("bpf_strtol", b"1f", 16, 2, 31),
        ("bpf_strtol", b"-9223372036854775808", 10, 20, 1 << 63),
        ("bpf_strtol", b"9223372036854775808", 10, -ERANGE, 0),
        ("bpf_strtoul", b"18446744073709551615", 10, 20, U64),
        ("bpf_strtoul", b"-1", 10, -EINVAL, 0),
        ("bpf_strtol", b"none", 10, -EINVAL, 0),
        ("bpf_strtol", b"1", 3, -EINVAL, 0),
        ("bpf_strtol", b"", 10, -EINVAL, 0),
    ],
)
def test_numbers_in_text(lab, call, scratch, name, text, base, taken, value):
    result = scratch(bytes(8))
    assert call(name, scratch(text), len(text), base, result) == taken
    assert lab.kernel.machine.read_u64(result) == value


def callback(lab, text):
    """A function of a program."""
    prog = lab.prog("fentry", text)
    return prog, prog.bpf_func


def test_loop(lab, call, scratch):
    total = scratch(bytes(8))
    # Adds its index to *ctx, and says "no more" at 6.
    prog, function = callback(lab, "add qword ptr [rsi], rdi\nxor eax, eax\ncmp rdi, 6\nsete al\nret")
    assert call("bpf_loop", 5, function, total, 0) == 5
    assert lab.kernel.machine.read_u64(total) == 0 + 1 + 2 + 3 + 4
    assert call("bpf_loop", 100, function, total, 0) == 7
    assert call("bpf_loop", 0, function, total, 0) == 0
    assert call("bpf_loop", 1, function, total, 1) == -EINVAL
    assert call("bpf_loop", (8 << 20) + 1, function, total, 0) == -E2BIG
    lab.unload(prog)


@pytest.mark.parametrize(
    "kind", [MapType.ARRAY, MapType.PERCPU_ARRAY, MapType.HASH, MapType.LRU_PERCPU_HASH, MapType.PERCPU_HASH]
)
def test_each_element(lab, call, scratch, kind):
    found = lab.map(MapSpec("m", kind, 4, 16, 6))
    for key in range(5):
        found[key] = (key + 100).to_bytes(8, "little") + bytes(8)
    total = scratch(bytes(16))
    text = """
    mov eax, dword ptr [rsi]
    add qword ptr [rcx], rax
    mov rax, qword ptr [rdx]
    add qword ptr [rcx + 8], rax
    xor eax, eax
    ret
"""
    prog, function = callback(lab, text)
    entries = 6 if "ARRAY" in kind.name else 5
    assert call("bpf_for_each_map_elem", found.address, function, total, 0, cpu=1) == entries
    assert lab.kernel.machine.read_u64(total) == sum(range(entries))
    assert lab.kernel.machine.read_u64(total + 8) == 510
    assert call("bpf_for_each_map_elem", found.address, function, total, 1) == -EINVAL
    stop, function = callback(lab, "mov eax, 1\nret")
    assert call("bpf_for_each_map_elem", found.address, function, total, 0) == 1
    for one in (prog, stop):
        lab.unload(one)
    lab.runtime.maps.close(found)


def test_callback_may_delete_its_element(lab, call, scratch):
    found = lab.map(MapSpec("m", MapType.HASH, 4, 8, 8, 1))
    for key in range(8):
        found[key] = key
    delete = lab.runtime.address("bpf_map_delete_elem")
    prog, function = callback(lab, f"sub rsp, 8\nmov rax, {delete:#x}\ncall rax\nxor eax, eax\nadd rsp, 8\nret")
    assert call("bpf_for_each_map_elem", found.address, function, 0, 0) == 8
    assert len(found) == 0
    lab.unload(prog)
    lab.runtime.maps.close(found)


def test_number_iterator(lab, call, scratch):
    it = scratch(bytes(8))
    assert call("bpf_iter_num_new", it, -1, 3) == 0
    seen = []
    while address := call("bpf_iter_num_next", it) & U64:
        value = lab.kernel.machine.read_u32(address)
        seen.append(value - (value >> 31 << 32))
    assert seen == [-1, 0, 1, 2]
    call("bpf_iter_num_destroy", it)
    assert call("bpf_iter_num_new", it, 3, 1) & 0xFFFFFFFF == -EINVAL & 0xFFFFFFFF
    assert call("bpf_iter_num_new", it, -(2**31), 2**31 - 1) & 0xFFFFFFFF == -E2BIG & 0xFFFFFFFF
    assert call("bpf_iter_num_next", it) == 0
    assert call("bpf_iter_num_new", it, 5, 5) == 0
    assert call("bpf_iter_num_next", it) == 0


def test_maps_from_programs(lab, call, scratch):
    key, value = scratch((1).to_bytes(4, "little")), scratch((77).to_bytes(8, "little"))
    for kind in (MapType.HASH, MapType.LRU_HASH, MapType.PERCPU_HASH, MapType.ARRAY, MapType.PERCPU_ARRAY):
        found = lab.map(MapSpec("m", kind, 4, 8, 2))
        assert call("bpf_map_update_elem", found.address, key, value, 0, cpu=1) == 0
        assert found[1] == ([0, 77] if kind.name.startswith("PERCPU") else 77)
        assert call("bpf_map_update_elem", found.address, key, value, 1) == -17
        assert call("bpf_map_update_elem", found.address, key, value, 8) == -EINVAL
        is_array = "ARRAY" in kind.name
        assert call("bpf_map_delete_elem", found.address, key) == (-EINVAL if is_array else 0)
        assert call("bpf_map_delete_elem", found.address, key) == (-EINVAL if is_array else -2)
        assert (1 in found) is is_array
        lab.runtime.maps.close(found)


def test_look_ups_are_counted_instructions(lab, scratch):
    found = lab.map(MapSpec("m", MapType.ARRAY, 4, 8, 2))
    made = lab.call(lab.runtime.address("bpf_map_lookup_elem"), found.address, scratch(bytes(4)))
    assert made.counts.instructions == 3 + 8
    lab.runtime.maps.close(found)


# Output ---------------------------------------------------------------------------------------------------------------


def printed(lab, call, scratch, text, *args):
    data = text.encode() + b"\0"
    lab.trace.clear()
    length = call("bpf_trace_printk", scratch(data), len(data), *args)
    if length < 0:
        assert not lab.trace
        return length
    assert length == len(lab.trace[0].text)
    return lab.trace[0].text


@pytest.mark.parametrize(
    ("text", "args", "expected"),
    [
        ("plain 100%%", (), "plain 100%"),
        ("%d %u %x", (-1, -1, 255), "-1 4294967295 ff"),
        ("%ld %lu %llX", (-1, -1, 255), f"-1 {U64} FF"),
        ("%i", (1 << 32 | 5,), "5"),
        ("[%5d] [%-5d] [%05d]", (-42, -42, -42), "[  -42] [-42  ] [-0042]"),
        ("%+d % d %c", (4, 4, ord("x")), "+4  4 x"),
        ("%px %p %pK", (0xFFFF888000001000,) * 3, "ffff888000001000 ffff888000001000 ffff888000001000"),
    ],
)
def test_formats(lab, call, scratch, text, args, expected):
    assert printed(lab, call, scratch, text, *args) == expected


@pytest.mark.parametrize(
    "text",
    ["%", "%f", "%n", "%5", "%hd", "%lc", "%pz", "%pi5", "%-%", "%d %d %d %d", "\x01", "caf\u00e9", "%.3s", "%*d"],
)
def test_formats_that_programs_may_not_use(lab, call, scratch, text):
    assert printed(lab, call, scratch, text, 0, 0, 0) == -EINVAL


def test_strings_symbols_and_addresses_are_printed(lab, call, scratch):
    text, address = scratch(b"name\0"), lab.kernel.kallsyms.address("bpf_fentry_test1")
    size = lab.kernel.function("bpf_fentry_test1").size
    assert printed(lab, call, scratch, "<%6s> %s|", text, 8) == "<  name> |"
    assert printed(lab, call, scratch, "%pks", text) == "name"
    assert printed(lab, call, scratch, "%ps %pS", address + 4, address + 4) == (
        f"bpf_fentry_test1 bpf_fentry_test1+0x4/0x{size:x}"
    )
    ip = scratch(bytes([192, 168, 0, 1]) + bytes(12))
    assert printed(lab, call, scratch, "%pI4 %pi4", ip, ip) == "192.168.0.1 192.168.000.001"
    assert printed(lab, call, scratch, "%pI6", ip) == "c0a8:0001:0000:0000:0000:0000:0000:0000"


def test_trace_lines_say_who_and_when(lab, call, scratch):
    lab.trace.clear()
    data = b"hello\0"
    call("bpf_trace_printk", scratch(data), len(data), cpu=1)
    line = lab.trace[0]
    assert (line.text, line.cpu, line.comm) == ("hello", 1, "swapper/1")
    assert str(line).endswith(": bpf_trace_printk: hello")
    assert "swapper/1-2 " in str(line)
    assert "[001]" in str(line)


def test_format_needs_its_end(lab, call, scratch):
    assert call("bpf_trace_printk", scratch(b"abc"), 3) == -EINVAL


def test_many_arguments(lab, call, scratch):
    text = b"%d %d %d %d %s\0"
    words = [1, 2, 3, 4, scratch(b"five\0")]
    data = scratch(b"".join(word.to_bytes(8, "little") for word in words))
    lab.trace.clear()
    assert call("bpf_trace_vprintk", scratch(text), len(text), data, 40) == 12
    assert lab.trace[0].text == "1 2 3 4 five"
    for size in (32, 39, 104):
        assert call("bpf_trace_vprintk", scratch(text), len(text), data, size) == -EINVAL
    buffer = scratch(b"x" * 16)
    assert call("bpf_snprintf", buffer, 8, scratch(text), data, 40) == 13
    assert lab.kernel.machine.read(buffer, 9) == b"1 2 3 4\0x"


def test_format_parts():
    assert parse(b"a%%b") == [b"a", b"%", b"b"]
    with pytest.raises(KernelError):
        parse(b"%")


# Adding one -----------------------------------------------------------------------------------------------------------


def test_helper_in_a_few_lines(lab, call):
    @python_helper("bpf_sum")
    def total(helper_call, first, second):
        if first == 13:
            raise KernelError(EAGAIN, "unlucky")
        return first + second

    lab.runtime.add(total, GuestHelper("bpf_twice_sum", "call bpf_sum\nadd rax, rax\nret"))
    assert call("bpf_twice_sum", 3, 4) == 14
    assert call("bpf_sum", 13, 4) == -EAGAIN
    assert isinstance(total, PythonHelper)


def test_helpers_that_can_not_be(lab):
    with pytest.raises(TrampolineError, match="up to 5"):
        python_helper("bpf_six")(lambda call, a, b, c, d, e, f: 0)
    with pytest.raises(UnsupportedHelper, match="bpf_d_path"):
        lab.runtime.address("bpf_d_path")
    with pytest.raises(AsmError):
        lab.runtime.add(python_helper("bpf_fine")(lambda call: 0), GuestHelper("bpf_broken", "mov nowhere\n"))
    with pytest.raises(UnsupportedHelper):
        lab.runtime.address("bpf_fine")
