import pytest

from btf_writer import Writer
from trampoline.bpf.btf.btf import BtfKind
from trampoline.bpf.maps.errors import MapValueError
from trampoline.bpf.maps.value_format import StructValue, format_of, plain


@pytest.fixture(scope="module")
def types():
    w, ids = Writer(), {}
    ids["int"] = w.int("int", 4, 1)
    ids["u64"] = w.int("u64", 8)
    ids["char"] = w.int("char", 1, 1)
    ids["typedef"] = w.add(BtfKind.TYPEDEF, "my_int", ids["int"])
    ids["ptr"] = w.add(BtfKind.PTR, "", ids["int"])
    ids["comm"] = w.add(BtfKind.ARRAY, words=(ids["char"], ids["int"], 16))
    ids["pair"] = w.add(BtfKind.ARRAY, words=(ids["typedef"], ids["int"], 2))
    ids["double"] = w.add(BtfKind.FLOAT, "double", 8)
    inner = w.struct("", 8, ("low", ids["int"], 0), ("high", ids["int"], 32))
    ids["event"] = w.struct(
        "event", 40, ("pid", ids["typedef"], 0), ("comm", ids["comm"], 32), ("", inner, 160), ("where", ids["ptr"], 256)
    )
    # A bit-field's size is in the upper byte of its offset.
    ids["bits"] = w.struct("bits", 4, ("a", ids["int"], 3 << 24), ("b", ids["int"], 5 << 24 | 3), flag=True)
    return w.btf(), ids


def test_numbers_have_their_sign(types):
    btf, ids = types
    assert format_of(btf, ids["typedef"], 4).decode(b"\xff" * 4) == -1
    assert format_of(btf, ids["u64"], 8).decode(b"\xff" * 8) == 2**64 - 1
    assert format_of(btf, ids["typedef"], 4).encode(-2) == b"\xfe\xff\xff\xff"
    assert format_of(btf, ids["double"], 8).decode(format_of(btf, ids["double"], 8).encode(1.5)) == 1.5


def test_structures_are_records(types):
    btf, ids = types
    event = format_of(btf, ids["event"], 40)
    data = event.encode({"pid": -5, "comm": "bash", "high": 7, "where": 2**63})
    value = event.decode(data)
    assert value == {"pid": -5, "comm": b"bash", "low": 0, "high": 7, "where": 2**63}
    assert (value.pid, value.comm, value["high"]) == (-5, b"bash", 7)
    assert event.encode(value) == event.encode(data) == data
    assert isinstance(value, StructValue)
    assert hash(value) == hash(event.decode(data))
    with pytest.raises(AttributeError, match="members are pid"):
        _ = value.tid
    with pytest.raises(AttributeError, match="copy"):
        value.pid = 3
    for bad in ({"tid": 1}, (1, 2), 5, b"short", {"comm": b"x" * 17}, {"pid": "one"}):
        with pytest.raises(MapValueError):
            event.encode(bad)


def test_bit_fields(types):
    btf, ids = types
    bits = format_of(btf, ids["bits"], 4)
    assert bits.encode({"a": 3, "b": -2}) == (3 | 0b11110 << 3).to_bytes(4, "little")
    assert bits.decode((3 | 0b11110 << 3).to_bytes(4, "little")) == {"a": 3, "b": -2}
    with pytest.raises(MapValueError):
        bits.encode({"a": 9})


def test_arrays_are_lists(types):
    btf, ids = types
    pair = format_of(btf, ids["pair"], 8)
    assert pair.decode(pair.encode([1, -1])) == [1, -1]
    for bad in ([1], 5, [1, 2, 3]):
        with pytest.raises(MapValueError):
            pair.encode(bad)


def test_without_a_type_small_sizes_are_numbers(types):
    btf, ids = types
    assert plain(8).decode(b"\xff" * 8) == 2**64 - 1
    assert plain(3).decode(b"abc") == b"abc"
    assert format_of(None, 5, 3).decode(b"abc") == b"abc"
    assert format_of(btf, ids["event"], 12).decode(bytes(12)) == bytes(12)
