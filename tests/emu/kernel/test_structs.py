import pytest
from hypothesis import given
from hypothesis import strategies as st

from emu.errors import EmuError
from emu.kernel.structs import (
    PERCPU,
    PREEMPT_ENABLED,
    NoFieldError,
    Struct,
    StructError,
    asm_symbols,
    embedded,
    initialise_percpu,
    initialise_task,
    percpu_ref,
    raw,
    s32,
    srcu_ctr,
    task_struct,
    u8,
    u16,
    u32,
    u64,
)

BASE = 0xFFFF888000000000


class Memory:
    """Guest memory at BASE that counts what is written."""

    def __init__(self, size=0x40000):
        self.bytes = bytearray(size)
        self.writes = []

    def read(self, address, size):
        at = address - BASE
        assert at >= 0
        assert at + size <= len(self.bytes)
        return bytes(self.bytes[at : at + size])

    def write(self, address, data):
        at = address - BASE
        assert at >= 0
        assert at + len(data) <= len(self.bytes)
        self.bytes[at : at + len(data)] = data
        self.writes.append((at, len(data)))


INNER = Struct("inner", size=0x10, fields={"first": u64(0), "second": s32(8)})
OUTER = Struct(
    "outer",
    size=0x60,
    fields={
        "flag": u8(0x01),
        "short": u16(0x02),
        "word": (0x04, 4),
        "long": u64(0x08),
        "signed": s32(0x10),
        "name": raw(0x14, 8),
        "inner": embedded(0x20, INNER),
        "numbers": u32(0x30).array(3),
        "pairs": embedded(0x40, INNER).array(2),
    },
)


@pytest.fixture
def memory():
    return Memory()


@pytest.mark.parametrize(
    ("field", "value", "offset", "stored"),
    [
        ("flag", 0xFE, 0x01, b"\xfe"),
        ("short", 0x1234, 0x02, b"\x34\x12"),
        ("word", 0x89ABCDEF, 0x04, b"\xef\xcd\xab\x89"),
        ("long", 0x0123456789ABCDEF, 0x08, b"\xef\xcd\xab\x89\x67\x45\x23\x01"),
        ("signed", -2, 0x10, b"\xfe\xff\xff\xff"),
        ("name", b"swapper\0", 0x14, b"swapper\0"),
    ],
)
def test_a_field_reads_and_writes_its_own_bytes_only(memory, field, value, offset, stored):
    memory.bytes[:] = b"\xaa" * len(memory.bytes)
    view = OUTER.view(memory, BASE + 0x100)
    setattr(view, field, value)
    assert getattr(view, field) == value
    assert memory.bytes[0x100 + offset : 0x100 + offset + len(stored)] == stored
    assert memory.writes == [(0x100 + offset, len(stored))]


def test_short_raw_values_are_followed_by_zeros(memory):
    memory.bytes[:] = b"\xaa" * len(memory.bytes)
    view = OUTER.view(memory, BASE)
    view.name = b"ab"
    assert view.name == b"ab\0\0\0\0\0\0"


def test_embedded_structures_and_arrays(memory):
    view = OUTER.view(memory, BASE)
    view.inner.second = -7
    view.numbers = (1, 2, 3)
    view.numbers[1] = 20
    view.pairs[1].first = 99
    assert int.from_bytes(memory.bytes[0x28:0x2C], "little", signed=True) == -7
    assert list(view.numbers) == [1, 20, 3]
    assert memory.bytes[0x50] == 99
    assert view.address_of("inner.second") == BASE + 0x28
    with pytest.raises(IndexError):
        view.numbers[3]


def test_clear_writes_zeros_over_the_structure_and_nothing_else(memory):
    memory.bytes[:] = b"\xaa" * len(memory.bytes)
    OUTER.view(memory, BASE + 0x10).clear()
    assert memory.bytes[0x10:0x70] == bytes(0x60)
    assert memory.bytes[0x0F] == memory.bytes[0x70] == 0xAA


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("flag", 256),
        ("word", -1),
        ("signed", 1 << 31),
        ("name", b"123456789"),
        ("numbers", (1, 2)),
        ("numbers", (1, 2, 1 << 32)),
        ("inner", 5),
    ],
)
def test_a_value_that_does_not_fit_is_refused_and_writes_nothing(memory, field, value):
    with pytest.raises(StructError, match=f"outer.{field}"):
        setattr(OUTER.view(memory, BASE), field, value)
    assert memory.writes == []


def test_unknown_fields_are_named(memory):
    view = OUTER.view(memory, BASE)
    with pytest.raises(NoFieldError, match="struct outer has no field 'flags'"):
        view.flags = 1
    with pytest.raises(AttributeError):
        _ = view.flags
    with pytest.raises(NoFieldError, match=r"outer.flag is not a structure"):
        view.address_of("flag.bit")
    assert issubclass(NoFieldError, EmuError)
    assert memory.writes == []


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"a": u64(0), "b": u8(7)}, "s.b at 0x7 overlaps s.a"),
        ({"a": u64(0xC)}, "outside"),
        ({"a": u32(0).array(5)}, "outside"),
        ({"address_of": u8(0)}, "reserved for a member"),
    ],
)
def test_contradictory_declarations_are_refused(fields, complaint):
    with pytest.raises(StructError, match=complaint):
        Struct("s", size=0x10, fields=fields)


def test_assembly_and_python_move_together():
    def declared(offset):
        return Struct("s", size=0x40, fields={"moved": u64(offset), "ref": embedded(offset + 8, percpu_ref)})

    for offset in (0, 0x18):
        struct = declared(offset)
        symbols = struct.asm_symbols(base=0x1000)
        assert symbols["s.moved"] == 0x1000 + offset
        assert symbols["s.ref.data"] == 0x1000 + offset + 8 + percpu_ref.offset("data")
        assert symbols["s.sizeof"] == 0x40
        memory = Memory()
        struct.view(memory, BASE).moved = 1
        assert memory.writes == [(offset, 8)]


@given(st.sampled_from(sorted(name for name, field in task_struct.fields.items() if field.count is None)), st.data())
def test_every_task_field_keeps_its_value_while_others_are_written(name, data):
    memory = Memory()
    view = task_struct.view(memory, BASE)
    field = task_struct.fields[name]
    if field.raw:
        value = data.draw(st.binary(min_size=field.size, max_size=field.size))
    else:
        low = -(1 << 8 * field.size - 1) if field.signed else 0
        value = data.draw(st.integers(low, low + (1 << 8 * field.size) - 1))
    setattr(view, name, value)
    for other, declared in task_struct.fields.items():
        if other != name and declared.count is None and not declared.raw:
            setattr(view, other, 1)
    assert getattr(view, name) == value


def test_symbols_of_the_kernels_structures():
    symbols = asm_symbols()
    assert symbols["task_struct.bpf_ctx"] == task_struct.offset("bpf_ctx")
    assert symbols["percpu.stack_canary"] == 0x28, "the compiler's choice"
    assert symbols["percpu.runqueues.nr_pinned"] == symbols["runqueues"] + symbols["rq.nr_pinned"]
    assert symbols["srcu_ctr.sizeof"] == srcu_ctr.size


def test_a_fresh_cpu_may_be_preempted_and_a_fresh_task_may_migrate():
    memory = Memory()
    task = initialise_task(memory, BASE + 0x38000, pid=7, comm="a name of more than 15", cpus=3)
    area = initialise_percpu(memory, BASE, 2, current=BASE + 0x38000, stack_canary=0x1100)
    assert (task.pid, task.tgid, task.comm.rstrip(b"\0")) == (7, 7, b"a name of more ")
    assert task.cpus_mask[0] == 0b111
    assert task.cpus_ptr == task.address_of("cpus_mask")
    assert area.preempt_count == PREEMPT_ENABLED
    assert (area.current_task, area.this_cpu_off, area.cpu_number) == (BASE + 0x38000, BASE, 2)
    assert area.runqueues.cpu == 2
    assert PERCPU.offset("call_depth") == 0x35010, "where the images of recorded 6.12 boots count"


MIXED = Struct(
    "mixed",
    size=40,
    fields={"first": u32(0), "signed": s32(4), "words": u64(8).array(2), "tag": raw(26, 3), "last": u8(30)},
)


@given(st.integers(0, 2**32 - 1), st.integers(-(2**31), 2**31 - 1), st.integers(0, 2**64 - 1), st.binary(max_size=3))
def test_codec_and_view_agree(first, signed, word, tag):
    memory = Memory()
    memory.write(BASE, MIXED.codec("first", "signed", "words", "tag", "last", end=MIXED.size).pack(
        first, signed, 1, word, tag, 7
    ))  # fmt: skip
    view = MIXED.view(memory, BASE)
    assert (view.first, view.signed, list(view.words), view.last) == (first, signed, [1, word], 7)
    assert view.tag == tag.ljust(3, b"\0")


def test_codec_begins_and_ends_where_asked():
    assert MIXED.codec("signed", start=4).pack(-1) == b"\xff" * 4
    assert MIXED.codec("words", "last").size == 31
    assert MIXED.codec("first", end=16).pack(1) == b"\x01" + bytes(15)


def test_codec_refuses_what_it_can_not_pack():
    outer = Struct("outer", size=48, fields={"inner": embedded(0, MIXED), "odd": (40, 3)})
    for struct, paths in ((MIXED, ("words", "first")), (outer, ("inner",)), (outer, ("odd",))):
        with pytest.raises(StructError, match="can't be packed"):
            struct.codec(*paths)
    with pytest.raises(NoFieldError):
        MIXED.codec("nothing")
