"""Objects written byte by byte: what relocations may say, and what is refused."""

import struct

import pytest

from btf_writer import Writer
from elf_writer import ALLOC, EXEC, FUNC, LOCAL, NOBITS, OBJECT, RELA, SECTION, WEAK, ElfWriter
from emu.elf import reader
from trampoline.bpf.btf.btf import BtfKind
from trampoline.bpf.errors import ObjectError
from trampoline.bpf.isa import encode, parse
from trampoline.bpf.isa.insn import CALL, LD_IMM64, CallKind, Imm64, Insn
from trampoline.bpf.objects import append_subprogs, resolve
from trampoline.bpf.objects import elf_sections as sources
from trampoline.bpf.objects.bpf_object import BpfObject
from trampoline.bpf.objects.externs import essential_name
from trampoline.bpf.objects.global_data import map_name
from trampoline.bpf.uapi import MapType

FENTRY = "fentry/f"
EXIT = "w0 = 0\nexit"
R_64, ABS64, R_32 = 1, 2, 10


def code(*insns):
    return encode((*insns, *parse(EXIT)))


def load(imm=0, src=0):
    return Insn(LD_IMM64, dst=1, src=src, imm=imm)


def call(imm=-1, src=CallKind.SUBPROG):
    return Insn(CALL, src=src, imm=imm)


def one(writer, **options):
    (program,) = BpfObject.open(writer.bytes(), "t.o").resolve(None, **options)
    return program


def refused(writer, reason, section=None, **options):
    with pytest.raises(ObjectError, match=reason) as caught:
        BpfObject.open(writer.bytes(), "t.o").resolve(None, **options)
    assert caught.value.object_name == "t.o"
    if section is not None:
        assert caught.value.section == section


def test_an_object_without_types():
    writer = ElfWriter()
    writer.code(FENTRY, ("one", EXIT), ("two", EXIT))
    writer.section("license", b"Dual MIT/GPL\0")
    programs = BpfObject.open(writer.bytes(), "t.o").programs
    assert [(program.name, program.license, program.btf) for program in programs] == [
        ("one", "Dual MIT/GPL", None),
        ("two", "Dual MIT/GPL", None),
    ]


def test_no_license_is_none():
    writer = ElfWriter()
    writer.code(FENTRY, ("one", EXIT))
    assert one(writer).license == ""


def data_object(value, addend, size=16, name=".data"):
    writer = ElfWriter()
    main = writer.code(FENTRY, ("main", code(load(addend % (1 << 64)))))
    data = writer.section(name, bytes(range(size)))
    writer.relocate(main, 0, writer.symbol("variable", data, value, 4, OBJECT), R_64)
    return writer


@pytest.mark.parametrize(("value", "addend", "offset"), [(0, 0, 0), (4, 0, 4), (0, 8, 8), (8, -4, 4), (8, 8, 16)])
def test_global_data(value, addend, offset):
    program = one(data_object(value, addend))
    assert program.insns[0] == Insn(LD_IMM64, dst=1, src=Imm64.MAP_VALUE, imm=offset << 32)
    assert [spec.name for spec in program.maps] == ["t.data"]
    assert program.maps[0].initial == bytes(range(16))


@pytest.mark.parametrize(("value", "addend"), [(0, -4), (16, 1), (0, 1 << 31), (8, 9)])
def test_data_beyond_its_section(value, addend):
    refused(data_object(value, addend), r"in main at slot 0: byte -?0x\w+ of \.data, which has 16", FENTRY)


def test_maps_are_listed_once_in_the_order_of_their_use():
    writer = ElfWriter()
    main = writer.code(FENTRY, ("main", code(load(), load(), load())))
    bss = writer.section(".bss", kind=NOBITS, size=8)
    data = writer.section(".data", bytes(8))
    for at, section in enumerate((data, bss, data)):
        writer.relocate(main, 16 * at, writer.symbol("", section, 0, 0, SECTION, LOCAL), R_64)
    program = one(writer)
    assert [spec.name for spec in program.maps] == ["t.data", "t.bss"]
    assert [insn.imm for insn in program.insns[:3]] == [0, 1, 0]


def test_calls_by_symbol_by_section_and_within_one():
    writer = ElfWriter()
    text = writer.code(".text", ("first", EXIT), ("second", EXIT), local=True)
    main = writer.code(FENTRY, ("main", code(call(), call(1), call(5))))
    writer.code("fentry/g", ("other", EXIT))
    helper = EXIT
    content = code(call(), call(1), call(5 - 3)) + encode(parse(helper))
    writer.sections[main] = (FENTRY, 1, ALLOC | EXEC, content, len(content), 0, 0)
    writer.symbol("beside", main, 40, 16, FUNC, LOCAL)
    writer.relocate(main, 0, 1, R_32)  # first, by its own symbol
    writer.relocate(main, 8, writer.symbol("", text, 0, 0, SECTION, LOCAL), R_32)  # second: slot 2 of .text
    (program, _) = BpfObject.open(writer.bytes()).programs
    assert [insn.imm for insn in program.insns[:3]] == [5 - 1, 7 - 2, 9 - 3]
    assert len(program.insns) == 11


def test_functions_call_one_another():
    writer = ElfWriter()
    text = writer.code(".text", ("even", code(call())), ("odd", code(call())))
    writer.relocate(text, 0, 2, R_32)
    writer.relocate(text, 24, 1, R_32)
    main = writer.code(FENTRY, ("main", code(call())))
    writer.relocate(main, 0, 1, R_32)
    program = one(writer)  # whether they may is the verifier's to say
    assert [insn.imm for insn in program.insns if insn.code == CALL] == [2, 2, -4]


def test_the_address_of_a_function():
    writer = ElfWriter()
    text = writer.code(".text", ("unused", EXIT), ("callback", EXIT), local=True)
    main = writer.code(FENTRY, ("main", code(load(16))))
    writer.relocate(main, 0, writer.symbol("", text, 0, 0, SECTION, LOCAL), R_64)
    program = one(writer)
    assert program.insns[0] == Insn(LD_IMM64, dst=1, src=Imm64.FUNC, imm=3)
    assert len(program.insns) == 5


def test_a_long_chain_of_calls_is_not_too_deep():
    writer = ElfWriter()
    text = writer.code(".text", *((f"f{n}", code(call())) for n in range(3000)))
    for n in range(2999):
        writer.relocate(text, 24 * n, n + 2, R_32)
    writer.relocate(text, 24 * 2999, 1, R_32)
    main = writer.code(FENTRY, ("main", code(call())))
    writer.relocate(main, 0, 1, R_32)
    assert len(one(writer).insns) == 9003


def plain(*insns):
    writer = ElfWriter()
    main = writer.code(FENTRY, ("main", code(*insns)))
    return writer, main


def test_bad_relocations():
    for offset in (4, 1 << 40, 8):
        writer, main = plain(load())
        writer.relocate(main, offset, writer.symbol("x", writer.section(".data", bytes(8))), R_64)
        refused(writer, "not at an instruction")
    writer, main = plain(load())
    data = writer.symbol("x", writer.section(".data", bytes(8)))
    writer.relocate(main, 0, data, R_64)
    writer.relocate(main, 0, data, R_64)
    refused(writer, "two relocations at 0x0", FENTRY)
    for insn, kind in ((load(), R_32), (call(), R_64), (load(), ABS64), (call(), 77), (Insn(0xB7), R_64)):
        writer, main = plain(insn)
        writer.relocate(main, 0, writer.symbol("x", writer.section(".data", bytes(8))), kind)
        refused(writer, f"relocation type {kind} on instruction", FENTRY)
    writer, main = plain(load())
    writer.relocate(main, 0, 99, R_64)
    refused(writer, "symbol 99 of")
    writer, main = plain(load())
    writer.relocate(main, 0, 0, R_64)
    refused(writer, "refers to nothing", FENTRY)
    writer, main = plain(load())
    writer.relocate(main, 0, writer.symbol("x", 0xFFF1, 5), R_64)
    refused(writer, "x is in no section", FENTRY)
    writer, main = plain(load())
    writer.relocate(main, 0, writer.symbol("x", writer.section(".other", bytes(8))), R_64)
    refused(writer, r"\.other holds no global variables", FENTRY)


def test_more_relocations_than_places():
    writer, main = plain(load())
    for _ in range(9):
        writer.relocate(main, 0, 0, 0)
    refused(writer, "more relocations than fentry/f has room", ".relfentry/f")


def test_limits(monkeypatch):
    def chain():
        writer = ElfWriter()
        text = writer.code(".text", ("large", code(*[Insn(0xB7)] * 100)), local=True)
        main = writer.code(FENTRY, *((f"p{n}", code(call())) for n in range(4)))
        for n in range(4):
            writer.relocate(main, 24 * n, writer.symbol("", text, 0, 0, SECTION, LOCAL), R_32)
        return writer

    assert len(BpfObject.open(chain().bytes()).programs) == 4
    with monkeypatch.context() as patch:
        patch.setattr(reader, "MAX_SYMBOLS", 5)
        refused(chain(), "more than 5 symbols", ".symtab")
    with monkeypatch.context() as patch:
        patch.setattr(sources, "_MAX_INSNS", 113)
        refused(chain(), "functions of more than 113 slots", FENTRY)
    with monkeypatch.context() as patch:
        patch.setattr(append_subprogs, "MAX_PROGRAM", 104)
        refused(chain(), "program p0 has more than 104 slots", FENTRY)
    with monkeypatch.context() as patch:
        patch.setattr(resolve, "_MAX_SLOTS", 419)
        refused(chain(), "program p3: programs of more than 419 slots together", FENTRY)
    with monkeypatch.context() as patch:
        patch.setattr(sources, "_MAX_DATA", 99)
        refused(chain(), "more than 99 bytes", ".text")


def test_bad_calls():
    writer, main = plain(call())
    writer.relocate(main, 0, writer.symbol("x", writer.section(".data", bytes(8)), 0, 0, OBJECT), R_32)
    refused(writer, "x is called, but is not a function", FENTRY)
    writer, main = plain(call())
    text = writer.code(".text", ("f", EXIT))
    writer.relocate(main, 0, writer.symbol("", text, 8, 0, SECTION, LOCAL), R_32)
    refused(writer, r"no function begins at slot 1 of \.text", FENTRY)
    writer, main = plain(call(-500))
    refused(writer, "no function begins at slot -499 of fentry/f", FENTRY)
    writer, main = plain(load(src=Imm64.FUNC))
    refused(writer, "the address of a function is not relocated", FENTRY)
    writer, main = plain(call(3, CallKind.HELPER))
    writer.relocate(main, 0, writer.symbol("f", writer.code(".text", ("f", EXIT)), 0, 16, FUNC), R_32)
    refused(writer, "a call of kind 0 is relocated", FENTRY)


def test_damaged_functions():
    for value, size in ((4, 8), (0, 12), (0, 0), (8, 800), (1 << 60, 8)):
        writer = ElfWriter()
        section = writer.section(FENTRY, code(), flags=ALLOC | EXEC)
        writer.symbol("bad", section, value, size, FUNC)
        refused(writer, "the function bad is", FENTRY)
    writer = ElfWriter()
    writer.symbol("bad", writer.section(".data", bytes(8)), 0, 8, FUNC)
    refused(writer, "bad is not in a section of code", ".data")
    writer = ElfWriter()
    writer.code(FENTRY, ("bad", b"\xff" * 8))
    refused(writer, "in bad at slot 0: unknown opcode 0xff", FENTRY)
    writer = ElfWriter()
    writer.code(FENTRY, ("bad", struct.pack("<BBhi", 0x18, 1, 0, 5)))
    refused(writer, "the second slot of LD_IMM64 is missing", FENTRY)
    writer = ElfWriter()
    writer.code(FENTRY, ("same", EXIT))
    writer.code("fexit/f", ("same", EXIT))
    refused(writer, "two programs are called same", "fexit/f")


@pytest.mark.parametrize("name", ["maps", ".struct_ops", ".struct_ops.link", ".addr_space.1", ".jumptables"])
def test_sections_that_are_not_supported_are_named(name):
    writer, _ = plain()
    writer.section(name, bytes(8))
    refused(writer, "not supported", name)


def test_foreign_files():
    for options, reason in (({"machine": 62}, "not BPF: the file is for machine 62"), ({"kind": 2}, "relocatable")):
        writer = ElfWriter(**options)
        writer.code(FENTRY, ("main", EXIT))
        refused(writer, reason)
    writer, _ = plain()
    writer.code("nonsense/f", ("g", EXIT))
    refused(writer, "unknown program section name", "nonsense/f")
    writer, main = plain(load())
    writer.section(".rela" + FENTRY, bytes(24), kind=RELA, info=main)
    refused(writer, "relocations with addends")
    writer, _ = plain()
    writer.section(".maps", bytes(8))
    refused(writer, r"no .BTF section", ".maps")
    writer, _ = plain()
    writer.section(".BTF.ext", bytes(8))
    refused(writer, r"missing .BTF section", ".BTF.ext")
    writer, _ = plain()
    writer.section(".BTF", bytes(30))
    refused(writer, "not BTF", ".BTF")
    writer, _ = plain()
    writer.section(".bss", kind=NOBITS, size=1 << 62)
    refused(writer, "more than", ".bss")
    writer, _ = plain()
    writer.section("license", b"x" * 500)
    refused(writer, "not text of up to 127 bytes", "license")


def test_an_extern_that_nothing_declares():
    writer, main = plain(call())
    writer.relocate(main, 0, writer.symbol("bpf_kfunc"), R_32)
    refused(writer, "bpf_kfunc is not defined, and BTF does not describe it")


def with_externs(*insns, binding=1, kind=BtfKind.FUNC):
    """A program that refers to `thing` of the kernel: a kfunc, or a variable."""
    btf = Writer()
    integer = btf.int("int", 4, 1)
    if kind is BtfKind.FUNC:
        thing = btf.func("thing", integer, ("a", integer), linkage=2)
    else:
        thing = btf.add(BtfKind.VAR, "thing", integer, words=(2,))
    btf.add(BtfKind.DATASEC, ".ksyms", 0, 1, (thing, 0, 0))
    writer, main = plain(*insns)
    writer.section(".BTF", btf.bytes())
    symbol = writer.symbol("thing", binding=binding)
    writer.relocate(main, 0, symbol, R_32 if insns[0].code == CALL else R_64)
    return writer


def kernel_with(kind=BtfKind.FUNC, argument_size=None):
    btf = Writer()
    integer = btf.int("int", 4, 1)
    btf.func("f", integer)
    if kind is BtfKind.FUNC:
        argument = btf.add(BtfKind.PTR, third=integer) if argument_size else integer
        btf.func("thing", integer, ("a", argument))
    elif kind is BtfKind.VAR:
        btf.add(BtfKind.VAR, "thing", integer, words=(1,))
    return btf.btf()


def test_kfuncs():
    kernel = kernel_with()
    thing = kernel.functions_named("thing")[0].id
    (program,) = BpfObject.open(with_externs(call()).bytes()).resolve(kernel)
    assert program.insns[0] == Insn(CALL, src=CallKind.KFUNC, imm=thing)
    (program,) = BpfObject.open(with_externs(load()).bytes()).resolve(kernel)
    assert program.insns[0] == Insn(LD_IMM64, dst=1, src=Imm64.BTF_ID, imm=thing)


def test_kfuncs_that_the_kernel_does_not_have():
    for kernel, reason in (
        (kernel_with(None), "the kernel has no thing"),
        (kernel_with(argument_size=8), "of another type"),
    ):
        with pytest.raises(ObjectError, match=reason):
            BpfObject.open(with_externs(call()).bytes()).resolve(kernel)
        (program,) = BpfObject.open(with_externs(call(), binding=WEAK).bytes()).resolve(kernel)
        assert (program.insns[0].src, program.insns[0].imm) == (0, 2002000000)
        (program,) = BpfObject.open(with_externs(load(), binding=WEAK).bytes()).resolve(kernel)
        assert program.insns[0] == load()
    with pytest.raises(ObjectError, match="thing is a kfunc: resolving it needs"):
        BpfObject.open(with_externs(call()).bytes()).resolve(None)


def test_variables_of_the_kernel():
    kernel = kernel_with(BtfKind.VAR)
    (program,) = BpfObject.open(with_externs(load(), kind=BtfKind.VAR).bytes()).resolve(kernel)
    assert program.insns[0].src == Imm64.BTF_ID
    assert kernel.type(program.insns[0].imm).name == "thing"
    with pytest.raises(ObjectError, match="thing is called, but is a variable"):
        BpfObject.open(with_externs(call(), kind=BtfKind.VAR).bytes())


@pytest.mark.parametrize(
    ("obj", "section", "name"),
    [
        ("prog", ".data", "prog.data"),
        ("prog", ".rodata", "prog.rodata"),
        ("fentry_test", ".rodata", "fentry_t.rodata"),
        ("fentry_test", ".data", "fentry_t.data"),
        ("fentry_test", ".kconfig", "fentry_.kconfig"),
        ("prog", ".data.mine", ".data.mine"),
        ("prog", ".rodata.very_long_name", ".rodata.very_lo"),
        ("a-b c", ".bss", "a_b_c.bss"),
    ],
)
def test_names_of_maps_of_data(obj, section, name):
    assert map_name(obj, section) == name
    assert len(name) <= 15


@pytest.mark.parametrize(
    ("name", "essential"),
    [
        ("task_struct", "task_struct"),
        ("task_struct___old", "task_struct"),
        ("a___b___c", "a___b"),
        ("___a", "___a"),
        ("a____b", "a____b"),
        ("a___", "a___"),
        ("", ""),
    ],
)
def test_flavours_of_a_name(name, essential):
    assert essential_name(name) == essential


def map_object(*members, size=64, linkage=1, section="", name="m", members_size=None):
    """An object with one map, whose struct's members are (name, number), (name, type id of a pointer) or a function."""
    btf = Writer()
    integer, char = btf.int("int", 4, 1), btf.int("char", 1)
    built = []
    for offset, (member, value) in enumerate(members):
        if callable(value):
            type_id = value(btf, integer, char)
        elif isinstance(value, int):
            type_id = btf.add(BtfKind.PTR, third=btf.add(BtfKind.ARRAY, words=(integer, integer, value)))
        else:
            type_id = btf.add(BtfKind.PTR, third={"int": integer, "char": char}[value])
        built.append((member, type_id, 64 * offset))
    struct_id = btf.struct("", size, *built)
    variable = btf.add(BtfKind.VAR, name, struct_id, words=(linkage,))
    btf.add(BtfKind.DATASEC, ".maps", 0, 1, (variable, 0, size))
    writer, main = plain(load())
    writer.section(".BTF", btf.bytes())
    maps = writer.section(".maps", bytes(64))
    writer.relocate(main, 0, writer.symbol(name, maps, 0, size, OBJECT), R_64)
    return writer


def test_a_map():
    program = one(map_object(("type", 1), ("max_entries", 10), ("key", "int"), ("value", "char"), ("map_flags", 1)))
    (spec,) = program.maps
    assert (spec.name, spec.type, spec.key_size, spec.value_size) == ("m", MapType.HASH, 4, 1)
    assert (spec.max_entries, spec.flags) == (10, 1)
    assert program.insns[0] == load(0, Imm64.MAP_FD)


@pytest.mark.parametrize(
    ("members", "options", "reason"),
    [
        ([("max_entries", 1)], {}, "map m: type is not specified"),
        ([("type", 999)], {}, "map m: unknown type 999"),
        ([("type", 1), ("nonsense", 1)], {}, "map m: unknown member 'nonsense'"),
        ([("type", "int")], {}, "map m: type is not a number"),
        ([("type", 1), ("key", "int"), ("key_size", 8)], {}, "key_size is 8, the key's type has 4 bytes"),
        ([("type", 1), ("key", lambda btf, integer, char: integer)], {}, "key is INT, not a pointer"),
        ([("type", 1), ("values", 0)], {}, "values is not an array"),
        ([("type", 1)], {"linkage": 0}, "static maps are not supported"),
        ([("type", 1)], {"size": 65}, "reaches beyond the section"),
        ([("type", 1)], {"name": ""}, "a map has no name"),
    ],
)
def test_damaged_maps(members, options, reason):
    refused(map_object(*members, **options), reason, ".maps")


def test_a_reference_into_a_map_is_refused():
    writer = map_object(("type", 1))
    maps = next(at for at, section in enumerate(writer.sections) if section[0] == ".maps")
    writer.relocations.clear()
    writer.relocate(1, 0, writer.symbol("inside", maps, 8), R_64)
    refused(writer, r"no map is at byte 0x8 of \.maps", FENTRY)


def test_types_in_a_circle_are_refused():
    writer = map_object(("type", 1), ("key", lambda btf, integer, char: btf.add(BtfKind.CONST, third=btf.count + 1)))
    refused(writer, "loop", ".BTF")
