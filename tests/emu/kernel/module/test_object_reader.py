import random
import struct
import subprocess
import sys
import warnings

import pytest
from unicorn import UC_ARCH_X86, UC_MODE_64, Uc
from unicorn.unicorn_const import UC_TLB_VIRTUAL
from unicorn.x86_const import (
    UC_X86_REG_R8,
    UC_X86_REG_R9,
    UC_X86_REG_RAX,
    UC_X86_REG_RCX,
    UC_X86_REG_RDI,
    UC_X86_REG_RDX,
    UC_X86_REG_RSI,
    UC_X86_REG_RSP,
)

from emu.errors import EmuError
from emu.kernel.module.object_reader import (
    MAX_LOADED_SIZE,
    ModuleError,
    RelocationType,
    link_object,
    read_object,
)
from paths import FIXTURES
from patience import PATIENCE

OBJECTS = FIXTURES / "objects"
FORMS = ["call-branch", "call-none", "nop-branch", "nop-none"]
NOP5 = bytes.fromhex("0f1f440000")
TEXT = 0xFFFFFFFF81000000
OUTSIDE = TEXT + 0x8000

# Field offsets: ELF header, section header, symbol, relocation with addend.
E_CLASS, E_TYPE, E_MACHINE, E_SHOFF, E_SHNUM = 4, 16, 18, 40, 60
SH_TYPE, SH_FLAGS, SH_OFFSET, SH_SIZE, SH_LINK, SH_ADDRALIGN = 4, 8, 24, 32, 40, 48
ST_INFO, ST_SHNDX, ST_VALUE, ST_SIZE = 4, 6, 8, 16
R_OFFSET, R_TYPE, R_SYMBOL, R_ADDEND = 0, 8, 12, 16


class Bytes(bytearray):
    """An object's bytes, to be damaged in one place."""

    def __init__(self, form):
        super().__init__((OBJECTS / f"{form}.o").read_bytes())
        (self.headers,) = struct.unpack_from("<Q", self, E_SHOFF)
        self.names = [self.section_name(index) for index in range(struct.unpack_from("<H", self, E_SHNUM)[0])]

    def section_name(self, index):
        names = self.headers + 64 * struct.unpack_from("<H", self, 62)[0]
        start = struct.unpack_from("<Q", self, names + SH_OFFSET)[0] + struct.unpack_from(
            "<I", self, self.headers + 64 * index
        )[0]
        return self[start : self.index(0, start)].decode()

    def set(self, layout, offset, value):
        struct.pack_into(layout, self, offset, value)
        return bytes(self)

    def header(self, name, field, value, layout="<Q"):
        return self.set(layout, self.headers + 64 * self.names.index(name) + field, value)

    def content(self, name):
        return struct.unpack_from("<Q", self, self.headers + 64 * self.names.index(name) + SH_OFFSET)[0]

    def symbol(self, name, field, value, layout="<Q"):
        strings = self.content(".strtab")
        entry = self.content(".symtab")
        while True:
            start = strings + struct.unpack_from("<I", self, entry)[0]
            if self[start : self.index(0, start)].decode() == name:
                return self.set(layout, entry + field, value)
            entry += 24


class Placed:
    """Puts sections one after another from `base` on, each aligned."""

    def __init__(self, base=TEXT):
        self.end = base

    def __call__(self, section):
        address = (self.end + section.alignment - 1) // section.alignment * section.alignment
        self.end = address + section.size
        return address


@pytest.fixture(params=FORMS)
def form(request):
    return request.param


@pytest.fixture
def obj(form):
    return read_object(OBJECTS / f"{form}.o")


def test_the_sections_that_a_kernel_keeps(obj):
    kinds = {section.name: (section.executable, section.writable) for section in obj.sections}
    assert kinds == {
        ".text": (True, False),
        ".data": (False, True),
        ".bss": (False, True),
        ".rodata.str1.1": (False, False),
        ".rodata": (False, False),
    }
    bss = next(section for section in obj.sections if section.name == ".bss")
    assert (bss.content, bss.size, bss.alignment) == (b"", 32, 32)
    assert obj.section(bss.index) is bss
    with pytest.raises(KeyError):
        obj.section(999)


def test_every_traceable_function_has_its_site_after_endbr64(obj, form):
    code = obj.sections[0].content
    sites = {site.function.name: site.offset - site.function.offset for site in obj.fentry_sites}
    # GCC gives a static function whose address is never taken no endbr64.
    assert sites.pop("twice") == 0
    assert set(sites) == {"add", "calls", "hidden_at", "name_of", "eight", "structs", "choose"}
    assert set(sites.values()) == {4 if "branch" in form else 0}
    for site in obj.fentry_sites:
        found = code[site.offset : site.offset + 5]
        assert found == (NOP5 if "nop" in form else b"\xe8\0\0\0\0")


def test_functions_and_symbols(obj):
    functions = {function.name: function for function in obj.functions}
    assert list(functions) == [
        "twice", "add", "calls", "hidden_at", "name_of", "eight", "structs", "choose", "untraced",
    ]  # fmt: skip
    assert not functions["twice"].is_global
    assert functions["add"].is_global
    assert obj.undefined == ("outside",)


def test_bytes_and_path_give_the_same_object(form):
    path = OBJECTS / f"{form}.o"
    assert read_object(str(path)) == read_object(path.read_bytes(), name=path.name)


def test_sites_are_nop5_once_linked(obj):
    linked = link_object(obj, Placed(), {"outside": OUTSIDE}.get)
    text = linked.sections[0]
    assert (text.address, len(text.content)) == (TEXT, obj.sections[0].size)
    for function in linked.functions:
        assert linked.symbols[function.name] == function.address
        if function.name == "untraced":
            assert function.site is None
        else:
            assert text.content[function.site - TEXT :][:5] == NOP5
    assert [function.address for function in linked.functions] == sorted(f.address for f in linked.functions)


@pytest.fixture
def call(obj):
    """Calls a linked function on a bare engine, at kernel addresses."""
    linked = link_object(obj, Placed(), {"outside": OUTSIDE}.get)
    engine = Uc(UC_ARCH_X86, UC_MODE_64)
    engine.ctl_set_tlb_mode(UC_TLB_VIRTUAL)
    engine.ctl_set_tcg_buffer_size(4 << 20)
    engine.mem_map(TEXT, 0x10000)
    for section in linked.sections:
        engine.mem_write(section.address, section.content)
    engine.mem_write(OUTSIDE, bytes.fromhex("488d4764c3"))  # lea rax, [rdi + 100]; ret
    registers = (UC_X86_REG_RDI, UC_X86_REG_RSI, UC_X86_REG_RDX, UC_X86_REG_RCX, UC_X86_REG_R8, UC_X86_REG_R9)

    def call(name, *arguments, on_stack=()):
        back = TEXT + 0xF000
        for register, value in zip(registers, arguments, strict=False):
            engine.reg_write(register, value % (1 << 64))
        stack = struct.pack(f"<Q{len(on_stack)}q", back, *on_stack)
        engine.mem_write(TEXT + 0xE000, stack)
        engine.reg_write(UC_X86_REG_RSP, TEXT + 0xE000)
        engine.emu_start(linked.symbols[name], back)
        return engine.reg_read(UC_X86_REG_RAX)

    call.memory = engine.mem_read
    return call


def signed(value, bits):
    value %= 1 << bits
    return value - (1 << bits) if value >> (bits - 1) else value


def test_linked_functions_compute_what_their_source_says(call):
    assert call("add", 3, 4) == 7
    assert signed(call("calls", 21, 5), 64) == 2 * 21 + (5 + 1) + (21 + 100)
    assert call("hidden_at", 1) == 21
    assert call("choose", 3) == 5 + 2  # `calls_of_add` was 5, and add ran twice
    assert [signed(call("choose", x), 32) for x in (0, 1, 2, 4, 5, 6, 7, -1)] == [11, 7, 300, -2, 7, 99, -1, -1]
    assert call("eight", 1, 2, 3, 4, 5, 6, on_stack=(7, 8)) == sum(i * i for i in range(1, 9))
    assert call("structs", 6, 7, on_stack=(100, 10, 1)) == 6 * 7 + 100 - 10 + 1
    names = [bytes(call.memory(call("name_of", i), 5)).split(b"\0")[0] for i in range(4)]
    assert names == [b"zero", b"one", b"two", b"many"]


@pytest.mark.parametrize(
    ("damage", "section", "says"),
    [
        (lambda raw: b"", "", "not an ELF file"),
        (lambda raw: b"\x7fELF", "", "damaged"),
        (lambda raw: raw.set("B", E_CLASS, 1), "", "not 64-bit"),
        (lambda raw: raw.set("<H", E_MACHINE, 183), "", "not x86-64"),
        (lambda raw: raw.set("<H", E_TYPE, 2), "", "not a relocatable object"),
        (lambda raw: raw.set("<Q", E_SHOFF, len(raw)), "", "section headers"),
        (lambda raw: bytes(raw[: raw.headers + 64 * 5]), "", "section headers"),
        (lambda raw: raw.header(".text", SH_SIZE, 1 << 20), ".text", "truncated"),
        (lambda raw: raw.header(".text", SH_OFFSET, 1 << 40), ".text", "truncated"),
        (lambda raw: raw.header(".bss", SH_SIZE, MAX_LOADED_SIZE), "", "bytes to load"),
        (lambda raw: raw.header(".text", SH_ADDRALIGN, 24), ".text", "power of two"),
        (lambda raw: raw.header(".rodata", SH_FLAGS, 0x802), ".rodata", "compressed"),
        (lambda raw: raw.header(".data", SH_FLAGS, 0x403), ".data", "thread-local"),
        (lambda raw: raw.header(".data", SH_TYPE, 14, "<I"), ".data", "type of section"),
        (lambda raw: raw.header(".symtab", SH_TYPE, 1, "<I"), "", "0 symbol tables"),
        (lambda raw: raw.header(".symtab", SH_SIZE, 25), ".symtab", "damaged"),
        (lambda raw: raw.header(".rela.text", SH_TYPE, 9, "<I"), ".text", "without addends"),
        (lambda raw: raw.header(".rela.text", SH_LINK, 1, "<I"), ".text", "symbol table"),
        (lambda raw: raw.header(".text", SH_FLAGS, 2), ".text", "nor a nop5"),
        (lambda raw: raw.symbol("add", ST_VALUE, 1 << 40), ".text", "add reaches beyond"),
        (lambda raw: raw.symbol("add", ST_SIZE, 1 << 40), ".text", "add reaches beyond"),
        (lambda raw: raw.symbol("add", ST_VALUE, 1), ".text", "no function begins"),
        (lambda raw: raw.symbol("add", ST_INFO, 0x1A, "B"), "", "indirect function"),
        (lambda raw: raw.symbol("calls_of_add", ST_SHNDX, 0xFFF2, "<H"), "", "-fno-common"),
        (lambda raw: raw.symbol("calls_of_add", ST_SHNDX, 60, "<H"), ".text", "not loaded"),
        (lambda raw: raw.set("<I", raw.content(".rela.text") + R_TYPE, 9), ".text", "unsupported relocation type 9"),
        (lambda raw: raw.set("<I", raw.content(".rela.text") + R_SYMBOL, 999), ".rela.text", "symbol 999 of"),
        (lambda raw: raw.set("<Q", raw.content(".rela.text") + R_OFFSET, 1 << 40), ".text", "reaches beyond"),
        (lambda raw: raw.set("<q", raw.content(".rela.text") + R_ADDEND, 0), ".text", "not a call"),
        (lambda raw: raw.set("B", raw.content(".text"), 0x90), ".text", "not a call"),
    ],
)
def test_damage_is_named(damage, section, says):
    with pytest.raises(ModuleError) as caught:
        read_object(damage(Bytes("call-none")), name="damaged.o")
    error = caught.value
    assert isinstance(error, EmuError)
    assert error.section == section
    assert says in error.reason
    assert str(error).startswith("damaged.o: ")
    assert section in str(error)


@pytest.mark.parametrize("addend", [-8, 1, 1 << 40])
def test_a_recorded_site_that_is_none_is_refused(addend):
    raw = Bytes("nop-none")
    with pytest.raises(ModuleError, match="nor a nop5"):
        read_object(raw.set("<q", raw.content(".rela__mcount_loc") + R_ADDEND, addend))


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(ModuleError, match=r"missing\.o: No such file"):
        read_object(tmp_path / "missing.o")
    with pytest.raises(ModuleError, match="not a regular file"):
        read_object(tmp_path)


def test_damaged_objects_raise_nothing_but_object_errors(capfd):
    """Truncated, overwritten and random bytes: 2,000 of them, whatever LIEF makes of each."""
    draw = random.Random(7)
    originals = [bytes(Bytes(form)) for form in FORMS]
    refused = 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for turn in range(2000):
            raw = bytearray(draw.choice(originals))
            headers = struct.unpack_from("<Q", raw, E_SHOFF)[0]
            if turn % 8 == 0:
                raw = raw[: draw.randrange(len(raw))]
            elif turn % 8 == 1:
                raw[draw.choice([0, 4, 64]) :] = draw.randbytes(draw.randrange(4000))
            else:
                for _ in range(draw.randint(1, 6)):
                    start, stop = draw.choice([(0, 64), (headers, len(raw)), (0x200, headers), (0, len(raw))])
                    raw[draw.randrange(start, stop)] = draw.choice([0, 1, 0x7F, 0x80, 0xFF, draw.randrange(256)])
            try:
                link_object(read_object(bytes(raw)), Placed(), lambda name: OUTSIDE)
            except ModuleError as error:
                refused += 1
                assert "\n" not in str(error)  # noqa: PT017
    assert refused > 1000
    assert capfd.readouterr() == ("", "")


def test_undefined_symbols_are_all_named():
    obj = read_object(Bytes("call-none").symbol("calls_of_add", ST_SHNDX, 0, "<H"))
    assert obj.undefined == ("calls_of_add", "outside")
    with pytest.raises(ModuleError, match="undefined: calls_of_add, outside"):
        link_object(obj, Placed(), lambda name: None)


def test_a_weak_symbol_may_stay_undefined():
    raw = Bytes("call-none")
    obj = read_object(raw.symbol("outside", ST_INFO, 0x20, "B"))
    # Address 0 is within reach of a call from low addresses only.
    link_object(obj, Placed(0x10000), lambda name: None)


def test_misplaced_sections_are_refused(obj):
    with pytest.raises(ModuleError, match="not a multiple") as caught:
        link_object(obj, lambda section: TEXT + 8, {"outside": OUTSIDE}.get)
    assert caught.value.section == ".text"
    with pytest.raises(ModuleError, match="overlaps"):
        link_object(obj, lambda section: TEXT, {"outside": OUTSIDE}.get)
    with pytest.raises(ModuleError, match="no guest address"):
        link_object(obj, lambda section: -4096, {"outside": OUTSIDE}.get)


@pytest.mark.parametrize("distance", [0x7FFFFFFF, -0x80000000])
def test_a_call_reaches_2_gib_and_no_further(distance):
    obj = read_object(OBJECTS / "nop-none.o")
    text = obj.sections[0]
    (reloc,) = (reloc for reloc in text.relocations if reloc.symbol.name == "outside")
    base = 0x90000000
    after = base + reloc.offset - reloc.addend
    low = {".text": base}

    def place(section):
        return low.get(section.name, 0x70000000 + 0x1000 * section.index)

    linked = link_object(obj, place, {"outside": after + distance}.get)
    assert struct.unpack_from("<i", linked.sections[0].content, reloc.offset) == (distance,)
    beyond = distance + (1 if distance > 0 else -1)
    with pytest.raises(ModuleError, match=f"{reloc.type.name} .* outside.* out of reach"):
        link_object(obj, place, {"outside": after + beyond}.get)


def test_a_sign_extended_address_must_be_in_the_highest_or_lowest_2_gib(obj):
    assert RelocationType.R_X86_64_32S in {reloc.type for reloc in obj.sections[0].relocations}
    with pytest.raises(ModuleError, match="R_X86_64_32S"):
        link_object(obj, Placed(0xFFFF888000000000), {"outside": 0xFFFF888000008000}.get)
    link_object(obj, Placed(0x7FFE0000), {"outside": 0x7FFF0000}.get)


def test_a_zero_extended_address_must_be_in_the_lowest_4_gib():
    raw = Bytes("call-none")
    rela = raw.content(".rela.text")
    entry = next(at for at in range(rela, rela + 17 * 24, 24) if struct.unpack_from("<I", raw, at + R_TYPE) == (11,))
    obj = read_object(raw.set("<I", entry + R_TYPE, int(RelocationType.R_X86_64_32)))
    with pytest.raises(ModuleError, match="R_X86_64_32 at"):
        link_object(obj, Placed(), {"outside": OUTSIDE}.get)
    link_object(obj, Placed(0x1000), {"outside": 0x8000}.get)


def test_reading_the_module_loads_no_lief():
    code = "import sys, emu.kernel.module.object_reader; print('lief' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE)
    assert (result.stdout, result.stderr) == ("False\n", "")
