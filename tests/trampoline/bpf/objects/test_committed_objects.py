"""Objects that clang made: tests/selftests. They are read, linked, and resolved against types of a small kernel."""


import pytest

from btf_writer import Writer
from paths import ROOT, SELFTEST_FOLDER
from selftests.expected import SELFTESTS
from trampoline.bpf.btf.btf import BtfKind
from trampoline.bpf.errors import ObjectError
from trampoline.bpf.isa.insn import CALL, LD_IMM64, CallKind, Imm64, places
from trampoline.bpf.objects.bpf_object import BpfObject
from trampoline.bpf.uapi import AttachType, MapType, ProgFlag, ProgType

OBJECTS = SELFTEST_FOLDER
NAMES = sorted(path.stem for path in OBJECTS.glob("*.c"))
KCONFIG = {"LINUX_KERNEL_VERSION": 0x060C00, "CONFIG_SMP": "y", "CONFIG_DEFAULT_HOSTNAME": "lab", "CONFIG_NR_CPUS": 64}
KSYMS = {"schedule": 0xFFFFFFFF81001000, "bpf_modify_return_test": 0xFFFFFFFF81002000} | {
    f"bpf_fentry_test{n}": 0xFFFFFFFF81003000 + n for n in range(1, 11)
}


def small_kernel(task_pid=2808):
    """Types of a kernel: the functions that the objects trace, and the structs whose fields they read."""
    writer = Writer()
    integer, long_, short = writer.int("int", 4, 1), writer.int("u64", 8), writer.int("u16", 2)
    char, boolean = writer.int("char", 1), writer.int("_Bool", 1, 4)
    pointer, number = writer.add(BtfKind.PTR), writer.add(BtfKind.PTR, third=long_)
    for n in range(1, 11):
        writer.func(f"bpf_fentry_test{n}", integer, ("a", integer))
    for name in ("bpf_modify_return_test", "bpf_modify_return_test2", "htab_map_delete_elem"):
        writer.func(name, integer, ("a", integer), ("b", pointer))
    for name in ("bpf_rcu_read_lock", "bpf_rcu_read_unlock"):
        writer.func(name, 0)
    writer.func("bpf_session_cookie", number, ("ctx", pointer))
    writer.func("bpf_session_is_return", boolean, ("ctx", pointer))
    comm = writer.add(BtfKind.ARRAY, words=(char, integer, 16))
    writer.struct("task_struct", 9000, ("comm", comm, 8 * 100), ("pid", integer, 8 * task_pid))
    inner = writer.struct("", 4, ("protocol", short, 0), ("pkt_type", char, 3 << 24 | 21), flag=True)
    writer.struct("sk_buff", 256, ("", inner, 8 * 128), flag=True)
    writer.struct("bpf_fentry_test_t", 16, ("b", pointer, 0), ("a", pointer, 64))
    words = [writer.name("PIDTYPE_PID"), 0, writer.name("PIDTYPE_PGID"), 2]
    writer.add(BtfKind.ENUM, "pid_type", 4, 2, words)
    return writer.btf()


KERNEL = small_kernel()


def module_function(name):
    """A BTF id for functions of bpf_testmod, which are in no kernel's BTF, and for the lab's own."""
    return 9 if name.startswith(("bpf_testmod", "tramplab")) else None


def resolved(name, kernel=KERNEL):
    """Every program of an object by name."""
    found = BpfObject.open(OBJECTS / f"{name}.o")
    names = [entry.name for entry in found.entries]
    programs = found.resolve(kernel, names=names, kconfig=KCONFIG, ksyms=KSYMS, function_id=module_function)
    return {program.name: program for program in programs}


def operands(program):
    """(slot, instruction) of each that refers to something."""
    return [
        (slot, insn)
        for slot, insn in zip(places(program.insns), program.insns, strict=False)
        if (insn.code == LD_IMM64 and insn.src) or (insn.code == CALL and insn.src)
    ]


@pytest.mark.parametrize("name", NAMES)
def test_every_object_is_read_and_resolved(name):
    source = BpfObject.open(OBJECTS / f"{name}.o")
    assert source.name == name
    assert source.license == "GPL"
    programs = resolved(name)
    assert list(programs) == [entry.name for entry in source.entries]
    for program in programs.values():
        assert program.funcs[0].slot == 0
        assert program.btf.type(program.funcs[0].type_id).name == program.name
        assert program.lines[0].slot == 0
        assert program.lines[0].file == f"./{name}.c"
        text = (OBJECTS / f"{name}.c").read_text().splitlines()
        assert all(line.text == text[line.line - 1] for line in program.lines if line.file == f"./{name}.c")


@pytest.mark.parametrize("test", SELFTESTS, ids=lambda test: test.name or test.object)
def test_expectations_name_programs_and_variables_that_there_are(test):
    source = BpfObject.open(OBJECTS / f"{test.object}.o")
    assert {link.program for link in test.attach} <= {entry.name for entry in source.entries}
    assert {*test.globals, *test.set, *test.ips} <= source.variables.keys()


def test_what_a_section_says_becomes_the_program():
    program = resolved("fentry_test")["test3"]
    assert (program.prog_type, program.attach) == (ProgType.TRACING, AttachType.TRACE_FENTRY)
    assert (program.section, program.target) == ("fentry/bpf_fentry_test3", "bpf_fentry_test3")
    assert program.attach_btf_id == KERNEL.functions_named("bpf_fentry_test3")[0].id
    assert not program.sleepable
    sleepable = resolved("tracing_multi")["multi_sleepable"]
    assert sleepable.flags == ProgFlag.SLEEPABLE
    assert sleepable.attach == AttachType.TRACE_FENTRY_MULTI


def test_multi_programs_are_loaded_without_a_target():
    for program in resolved("tracing_multi").values():
        assert program.attach_btf_id == 0
    assert resolved("tracing_multi")["multi_module"].target == "bpf_testmod:bpf_testmod_fentry_test*"


def test_without_a_kernel_targets_have_no_ids():
    programs = BpfObject.open(OBJECTS / "trampoline_count.o").programs
    assert [(program.target, program.attach_btf_id) for program in programs] == [("bpf_modify_return_test", 0)] * 3


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("fentry_test", "FIELD_BYTE_OFFSET of struct bpf_fentry_test_t"),
        ("fsession", "bpf_session_cookie is a kfunc"),
        ("linked_parts", "the value of LINUX_KERNEL_VERSION is not known"),
        ("get_func_ip", "the address of bpf_fentry_test1 is not known"),
    ],
)
def test_what_needs_a_kernel_is_named(name, reason):
    with pytest.raises(ObjectError, match=reason):
        _ = BpfObject.open(OBJECTS / f"{name}.o").programs


def test_a_target_that_the_kernel_does_not_have_is_named():
    with pytest.raises(ObjectError, match=r"fexit_sleep.o: fentry/tramplab_sleeps: .* no tramplab_sleeps to trace"):
        BpfObject.open(OBJECTS / "fexit_sleep.o").resolve(KERNEL)


def test_another_target_can_be_given():
    stress = BpfObject.open(OBJECTS / "fexit_stress.o")
    (program,) = stress.resolve(KERNEL, targets={"nothing": "bpf_fentry_test2"})
    assert program.target == "bpf_fentry_test2"
    assert program.attach_btf_id == KERNEL.functions_named("bpf_fentry_test2")[0].id


def test_a_program_as_target():
    target = resolved("linked_parts")["links"]
    stress = BpfObject.open(OBJECTS / "fexit_stress.o")
    (program,) = stress.resolve(KERNEL, targets={"nothing": "global_add"}, attach_to={"nothing": target})
    assert program.attach_prog is target
    assert target.btf.type(program.attach_btf_id).name == "global_add"
    with pytest.raises(ObjectError, match="no function missing"):
        stress.resolve(KERNEL, targets={"nothing": "missing"}, attach_to={"nothing": target})


def test_sections_with_a_question_mark_are_loaded_by_name_only():
    parts = BpfObject.open(OBJECTS / "linked_parts.o")
    assert [entry.name for entry in parts.entries if not entry.autoload] == ["core"]
    assert [one.name for one in parts.resolve(KERNEL, kconfig=KCONFIG, ksyms=KSYMS)] == ["tail", "links"]
    with pytest.raises(ObjectError, match="no program nothing"):
        parts.resolve(KERNEL, names=["nothing"])


def test_maps_are_as_they_were_declared():
    maps = BpfObject.open(OBJECTS / "linked_parts.o").maps
    assert list(maps) == [
        "inner_one", "inner_two", "outer", "jumps", "ring", "per_cpu",
        "linked_p.data", "linked_p.rodata", ".data.own", ".rodata.own", "linked_p.bss",
    ]  # fmt: skip
    inner = maps["inner_one"]
    assert (inner.type, inner.key_size, inner.value_size, inner.max_entries) == (MapType.ARRAY, 4, 8, 2)
    outer = maps["outer"]
    assert (outer.type, outer.key_size, outer.value_size, outer.max_entries) == (MapType.ARRAY_OF_MAPS, 4, 4, 3)
    assert (outer.inner.name, outer.inner.value_size) == ("outer.inner", 8)
    assert (maps["jumps"].type, maps["jumps"].value_size) == (MapType.PROG_ARRAY, 4)
    assert maps["ring"].max_entries == 8192  # 5000 bytes are not a power of two of pages
    assert maps["per_cpu"].value_size == 16


def test_what_maps_of_maps_and_programs_hold_at_first():
    parts = BpfObject.open(OBJECTS / "linked_parts.o")
    assert parts.initial_slots == {"outer": {0: "inner_one", 2: "inner_two"}, "jumps": {1: "tail"}}


def test_global_data():
    parts = BpfObject.open(OBJECTS / "linked_parts.o")
    data, constants = parts.data[".data"], parts.data[".rodata"]
    assert int.from_bytes(data.initial, "little") == 7
    assert (data.readonly, data.flags & 1 << 7) == (False, 0)
    assert (constants.readonly, bool(constants.flags & 1 << 7)) == (True, True)
    bss = parts.data[".bss"]
    assert not any(bss.initial)
    assert len(bss.initial) == bss.value_size
    called = parts.variables["called"]
    assert (called.map, called.size, parts.btf.value(called.type_id).type) == (bss.name, 8, "u64")
    assert parts.variables["own_constant"].map == ".rodata.own"
    # As libbpf completes it: places of variables stand in the types too.
    (section,) = (i for i in range(len(parts.btf)) if parts.btf.type(i).name == ".bss")
    assert parts.btf.type(section).size == bss.value_size
    places_ = {parts.btf.type(one.type_id).name: one.offset for one in parts.btf.variables(section)}
    assert places_["called"] == called.offset
    assert list(places_.values()) == sorted(places_.values())


def test_functions_are_appended_in_the_order_of_their_first_use():
    program = resolved("linked_parts")["links"]
    names = [program.btf.type(info.type_id).name for info in program.funcs]
    assert names == ["links", "hidden_add", "global_add", "add", "count"]
    starts = {info.slot for info in program.funcs}
    for slot, insn in operands(program):
        if insn.function is not None:
            assert slot + 1 + insn.function in starts
    uses = [insn.src for _, insn in operands(program) if insn.code == LD_IMM64]
    assert uses.count(Imm64.FUNC) == 1
    assert sum(1 for _, insn in operands(program) if insn.code == CALL and insn.src == CallKind.SUBPROG) == 4


def test_a_hidden_function_is_static_for_the_verifier():
    program = resolved("linked_parts")["links"]
    linkages = {program.btf.type(info.type_id).name: program.btf.linkage(info.type_id) for info in program.funcs}
    assert linkages["hidden_add"] == "static"
    assert linkages["global_add"] == "global"


def test_kfuncs_symbols_and_configuration():
    program = resolved("linked_parts")["links"]
    kfuncs = [insn.imm for _, insn in operands(program) if insn.code == CALL and insn.src == CallKind.KFUNC]
    assert [KERNEL.type(i).name for i in kfuncs] == ["bpf_rcu_read_lock", "bpf_rcu_read_unlock"]
    numbers = [insn.imm for insn in program.insns if insn.code == LD_IMM64 and insn.src == Imm64.VALUE]
    assert sorted(numbers)[-1] == KSYMS["schedule"]
    assert 0 in numbers  # the weak symbol that the kernel does not have
    missing = [insn.imm for insn in program.insns if insn.code == CALL and insn.imm > 1_000_000]
    assert len(missing) == 1  # and the weak kfunc
    (config,) = (spec for spec in program.maps if spec.name == "linked_.kconfig")
    assert config.readonly
    # The most aligned first: CONFIG_NR_CPUS, LINUX_KERNEL_VERSION, then bytes.
    assert config.initial == bytes([64, 0, 0, 0, 0, 0, 0, 0, 0, 12, 6, 0]) + b"lab".ljust(16, b"\0") + b"\1"


def test_a_weak_value_that_is_not_known_is_zero_a_strong_one_refused():
    parts = BpfObject.open(OBJECTS / "linked_parts.o")
    (program,) = parts.resolve(KERNEL, names=["links"], kconfig={"LINUX_KERNEL_VERSION": 5}, ksyms=KSYMS)
    (config,) = (spec for spec in program.maps if spec.name == "linked_.kconfig")
    assert sum(config.initial) == 5
    with pytest.raises(ObjectError, match="LINUX_KERNEL_VERSION is 'y', which its variable cannot hold"):
        parts.resolve(KERNEL, names=["links"], kconfig={"LINUX_KERNEL_VERSION": "y"}, ksyms=KSYMS)


@pytest.mark.parametrize("pid", [0, 4, 2808, 8996])
def test_fields_are_where_the_kernel_has_them(pid):
    program = resolved("linked_parts", small_kernel(pid))["core"]
    loads = [insn.off for insn in program.insns if insn.code == 0x61]
    assert loads == [pid]


def test_questions_about_types_are_answered_by_the_kernel():
    program = resolved("linked_parts")["core"]
    immediates = [insn.imm for insn in program.insns if insn.code in (0xB7, LD_IMM64) and not insn.src]
    assert 9000 in immediates  # the struct's size
    assert 2 in immediates  # PIDTYPE_PGID
    assert 128 + 2 in immediates  # the byte that the bit-field is in: bit 21
    assert 64 - 5 - 3 in immediates  # and how far it is to be shifted: bits 5 to 7 of that byte
    assert 64 - 3 in immediates


def test_the_example():
    found = BpfObject.open(ROOT / "examples" / "watch_calls.o")
    (program,) = found.resolve(KERNEL)
    assert program.target == "bpf_fentry_test5"
    assert [spec.name for spec in program.maps] == ["watch_ca.bss", "watch_ca.rodata", "calls", "by_result"]
    assert {"seen", "recorded", "dropped", "at_least"} <= found.variables.keys()
