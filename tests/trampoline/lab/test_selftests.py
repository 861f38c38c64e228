"""The selftests' programs from their objects: loaded, attached, their functions called, what they saw compared."""

import errno

import pytest

from emu.kernel.errors import KernelError
from paths import ROOT
from selftests.expected import RECURSION, SELFTESTS, TRAMPOLINE_COUNT, Buffer, placed
from trampoline.bpf.btf.btf import Btf
from trampoline.bpf.objects.bpf_object import BpfObject
from trampoline.lab import Lab

pytestmark = pytest.mark.slow

FOLDER = ROOT / "tests"
MODULE = {"module", "struct-args"}
SINCE = {*MODULE, "stack-args", "get-func-args", "modify-return-test2"}
HAS = {"6.1": MODULE, "6.12": SINCE, "7.2": {*SINCE, "fsession", "multi"}}
"""What the kernels of the fixtures have."""
NO_FMOD_RET = {"bpf_cookie", "get_func_ip", "modify_return", "trampoline_count"}
"""6.1 was recorded without a function that fmod_ret may be on."""
KERNELS = {"6.1": ("6.1", "per-function", "voluntary"), "6.12": ("6.12", "per-function", "voluntary")} | {
    "7.2": ("7.2", "per-function", "none"),
    "6.12 specialised": ("6.12", "specialised", "voluntary"),
    "7.2 specialised": ("7.2", "specialised", "lazy"),
    "7.2 batched": ("7.2", "batched", "voluntary"),
    "7.2 generic": ("7.2", "generic", "voluntary"),
    "7.2 tracing-multi-v2-fixed": ("7.2", "tracing-multi-v2-fixed", "voluntary"),
}
"""Release, design and configuration."""

CAN_NOT = {
    # Programs that take the return value from behind the function's own arguments, or an argument between others.
    "7.2 generic": {
        "fexit_test", "many_args", "fexit_sleep", "modify_return, the function runs",
        "modify_return, the function does not run", "modify_return, two arguments", "trampoline_count", "get_func_ip",
        "get_func_args", "bpf_cookie", "tracing_struct", "tracing_struct, on the stack", "fsession",
    },
    # Seven arguments; sessions.
    "7.2 tracing-multi-v2-fixed": {"tracing_multi, a module's functions", "tracing_multi_session"},
}  # fmt: skip
"""What a design refuses, by documented rules."""

CASES = [
    pytest.param(kernel, test, id=f"{kernel}-{test.name or test.object}")
    for kernel, (release, _, _) in KERNELS.items()
    for has in (HAS[release],)
    for test in SELFTESTS
    if test.needs <= has and not (release == "6.1" and test.object in NO_FMOD_RET)
]


@pytest.fixture(scope="module")
def labs():
    made = {}

    def lab(name):
        if name not in made:
            release, design, config = KERNELS[name]
            btf = Btf.read(FOLDER / "fixtures" / "load" / f"{release}.btf.xz")
            made[name] = Lab(release, config, btf=btf, design=design)
            made[name].load_testmod()
            _ = made[name].installer
        return made[name]

    yield lab
    for one in made.values():
        one.close()


def opened(lab, name, **options):
    return lab.open(BpfObject.open(FOLDER / "selftests" / f"{name}.o"), **options)


def memory_of(lab):
    kernel = lab.kernel
    kernel.rcu.settle()
    used = kernel.slab.used, kernel.percpu.used, kernel.vmalloc.used, kernel.execmem.used, lab.runtime.memory.used
    return (*used, len(kernel.kallsyms), len(lab.runtime.maps), len(lab.programs.loaded), len(lab.installer.extable))


def call(lab, function, args):
    """The result as a C int, and what is in the buffers then."""
    buffers, words = [], []
    for arg in args:
        if isinstance(arg, Buffer):
            buffers.append((lab.kernel.slab.alloc(len(arg.before), "argument", arg.before), len(arg.before)))
            arg = buffers[-1][0]
        words.append(arg)
    registers, stack = placed(tuple(words))
    value = lab.call(function, *registers, stack_args=stack).value & 0xFFFFFFFF
    contents = [lab.kernel.machine.read(*buffer) for buffer in buffers]
    for address, _ in buffers:
        lab.kernel.slab.free(address)
    return value, contents


@pytest.mark.parametrize(("kernel", "test"), CASES)
def test_selftest(labs, kernel, test):
    lab = labs(kernel)
    before = memory_of(lab)
    with opened(lab, test.object, names={one.program for one in test.attach}, data=test.set) as loaded:
        if (test.name or test.object) in CAN_NOT.get(kernel, ()):
            with pytest.raises(KernelError) as refused:
                attach(lab, loaded, test)
            assert refused.value.errno in (errno.EOPNOTSUPP, errno.EINVAL)
        else:
            attach(lab, loaded, test)
            compare(lab, loaded, test)
    assert memory_of(lab) == before


def attach(lab, loaded, test):
    for one in test.attach:
        if one.functions:
            functions, cookies = list(one.functions), list(one.cookies) or None
            loaded.links.append(lab.attach_multi(loaded.programs[one.program], functions, cookies=cookies))
        else:
            loaded.attach(one.program, cookie=one.cookies[0] if one.cookies else 0)


def compare(lab, loaded, test):
    for wanted in test.calls:
        value, contents = call(lab, wanted.function, wanted.args)
        assert value == wanted.ret & 0xFFFFFFFF, wanted.function
        buffers = [arg for arg in wanted.args if isinstance(arg, Buffer)]
        assert contents == [one.before if one.after is None else one.after for one in buffers]
    seen = {name: loaded.data[name] for name in test.globals}
    assert {name: unsigned(loaded, name) for name in seen} == test.globals
    for name, function in test.ips.items():
        assert loaded.data[name] == lab.kernel.kallsyms.address(function)


def unsigned(loaded, name):
    value = loaded.data[name]
    if isinstance(value, list):
        return tuple(value)
    return value % (1 << 32) if value < 0 else value


@pytest.mark.parametrize("release", HAS)
def test_program_on_what_it_calls_is_missed(labs, release):
    lab = labs(release)
    with opened(lab, "recursion") as loaded:
        loaded.attach_all()
        for name in ("quiet", "recursing"):
            for _ in range(2):
                with pytest.raises(KeyError):
                    del loaded.maps[name][0]
        seen = dict(loaded.data) | {"misses": lab.programs.misses(loaded.programs["on_delete"])}
        assert seen == RECURSION


@pytest.mark.parametrize("release", ["6.12", "7.2"])
def test_links_of_one_function_are_limited(labs, release):
    lab = labs(release)
    names = ("count_entry", "count_modify", "count_exit")
    most = TRAMPOLINE_COUNT.get(release, TRAMPOLINE_COUNT["links"])
    objects = [opened(lab, "trampoline_count") for _ in range(most // 3 + 1)]
    for number in range(most):
        objects[number // 3].attach(names[number % 3])
    with pytest.raises(KernelError) as refused:
        objects[most // 3].attach(names[most % 3])
    assert refused.value.errno == getattr(errno, TRAMPOLINE_COUNT["over"])
    value, _ = call(lab, "bpf_modify_return_test", (1, Buffer(bytes([2, 0, 0, 0]), bytes([3, 0, 0, 0]))))
    assert value == 4
    for one in objects:
        one.close()


@pytest.mark.parametrize("release", ["6.12", "7.2"])
def test_everything_that_an_object_can_refer_to(labs, release):
    lab = labs(release)
    before = memory_of(lab)
    with opened(lab, "linked_parts", kconfig={"CONFIG_DEFAULT_HOSTNAME": "host"}, data={"limit": 4}) as loaded:
        loaded.attach("links")
        call(lab, "bpf_fentry_test1", (1,))
        seen = {name: loaded.data[name] for name in ("called", "counted", "custom", "tail_ran", "hidden_count", "host")}
        added = (1 + 1 + 7 + 4) + (1 + 2 + 7)  # value and limit are added, the latter as it was chosen
        counted = {"counted": 0 + 1 + 2 + 3, "tail_ran": 1, "hidden_count": 2}
        assert seen == {"called": added, "custom": 11 + 12, "host": ord("h"), **counted}
        assert loaded.data["schedule_at"] == lab.kernel.kallsyms.address("schedule")
        assert loaded.maps["ring"].drain() == [bytes([1, 0, 0, 0])]
        assert (loaded.maps["inner_one"][0], loaded.maps["inner_two"][0]) == (5, 0)
        assert int.from_bytes(loaded.maps["per_cpu"][0][0][:8], "little") == 1
        assert list(loaded.maps["jumps"]) == [1]
    assert memory_of(lab) == before
