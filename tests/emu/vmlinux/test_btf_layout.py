"""Offsets, sizes, enumerators and prototypes out of raw BTF."""

import pytest

from btf_writer import Writer
from emu.vmlinux.btf_layout import BadBtf, BtfLayout, UnknownLayout
from trampoline.bpf.btf.btf import BtfKind


@pytest.fixture(scope="module")
def raw():
    btf = Writer()
    number = btf.int("int", 4, 1)
    long = btf.int("long", 8, 1)
    pointer = btf.add(BtfKind.PTR, "", number)
    inner = btf.struct("", 16, ("deep", number, 0), ("deeper", long, 64))
    union = btf.struct("", 16, ("", inner, 0), ("flat", long, 0), kind=BtfKind.UNION)
    alias = btf.add(BtfKind.TYPEDEF, "alias_t", inner)
    array = btf.add(BtfKind.ARRAY, "", 0, words=(number, number, 7))
    btf.struct("thing", 64, ("first", number, 0), ("", union, 128), ("named", alias, 256), ("many", array, 384))
    btf.func("returns_int", number, ("a", number), ("b", pointer))
    btf.func("returns_pointer", pointer)
    btf.func("returns_nothing", 0)
    values = [word for name, value in (("RED", 1), ("BLUE", 0xFFFFFFFF)) for word in (btf.name(name), value)]
    btf.add(BtfKind.ENUM, "colour", 4, 2, values)
    btf.add(BtfKind.ENUM, "", 4, 1, (btf.name("UNNAMED_FLAG"), 64))
    return btf.bytes()


def test_members_are_found_through_anonymous_unions_and_typedefs(raw):
    layout = BtfLayout(raw)
    members = ("first", "deep", "deeper", "flat", "named.deeper", "many")
    assert [layout.offset("thing", name) for name in members] == [0, 16, 24, 16, 40, 48]
    assert (layout.size("thing"), layout.length("thing", "many")) == (64, 7)
    assert layout.has("thing")
    assert not layout.has("thing", "named.nosuch")


def test_functions_and_enumerators(raw):
    layout = BtfLayout(raw)
    assert [layout.return_bytes(f"returns_{what}") for what in ("int", "pointer", "nothing", "nosuch")] == [
        4,
        8,
        0,
        None,
    ]
    assert layout.arguments("returns_int") == 2
    assert layout.function_name(layout.function("returns_int")) == "returns_int"
    assert layout.function_name(1) is None
    assert layout.enumerators("colour") == {"RED": 1, "BLUE": -1}
    assert layout.enumerator("UNNAMED_FLAG") == 64


@pytest.mark.parametrize(
    "ask",
    [
        lambda layout: layout.offset("nosuch", "x"),
        lambda layout: layout.offset("thing", "nosuch"),
        lambda layout: layout.size("nosuch"),
        lambda layout: layout.length("thing", "first"),
        lambda layout: layout.enumerators("nosuch"),
        lambda layout: layout.enumerator("RED"),
    ],
)
def test_what_a_kernel_lacks_is_named(raw, ask):
    with pytest.raises(UnknownLayout, match="BTF has no"):
        ask(BtfLayout(raw))


@pytest.mark.parametrize("damage", [lambda raw: raw[:10], lambda raw: b"\0" + raw[1:], lambda raw: raw[:-5]])
def test_damaged_btf_is_refused(raw, damage):
    with pytest.raises(BadBtf):
        BtfLayout(damage(raw))
