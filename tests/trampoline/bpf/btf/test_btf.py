"""Raw BTF: a small one written byte by byte, and excerpts of three kernels against what they recorded."""

import contextlib
import gzip
import itertools
import json
import lzma
import random
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from btf_writer import Writer
from paths import FIXTURES
from trampoline.bpf.btf.btf import MAX_DEPTH, MAX_SIZE, Btf, BtfKind, DeclTag, Func, Member, Value, model_of
from trampoline.bpf.btf.func_model import FuncArg, FuncModel
from trampoline.bpf.errors import BtfError, KernelError, TrampolineError

FIXTURES = FIXTURES
KERNELS = ("6.1", "6.12", "7.2")
SIGNED, CHAR, BOOL = 1, 2, 4


def one_of_each():
    w = Writer()
    i = w.int("int", 4, SIGNED)
    c = w.int("char", 1, CHAR)
    const = w.add(BtfKind.CONST, third=c)
    pointer = w.add(BtfKind.PTR, third=const)
    size_t = w.add(BtfKind.TYPEDEF, "size_t", w.int("long unsigned int", 8))
    array = w.add(BtfKind.ARRAY, words=(i, i, 5))
    pair = w.struct("pair", 16, ("a", size_t, 0), ("b", pointer, 64))
    w.struct("either", 8, ("x", i, 0), ("y", array, 0), kind=BtfKind.UNION)
    w.add(BtfKind.ENUM, "mode", 4, 1, (w.name("ON"), 1))
    w.add(BtfKind.ENUM64, "wide", 8, 1, (w.name("ALL"), 2, 3))
    w.add(BtfKind.FWD, "later", flag=True)
    w.add(BtfKind.FLOAT, "double", 8)
    w.add(BtfKind.VOLATILE, third=i)
    w.add(BtfKind.RESTRICT, third=pointer)
    user = w.add(BtfKind.TYPE_TAG, "user", pair)
    w.add(BtfKind.PTR, third=user)
    read = w.func("read", i, ("buf", w.count), ("n", size_t), linkage=1)
    w.func("print", 0, ("fmt", pointer), ("", 0), linkage=2)
    w.func("read", 0, ("p", pair))
    w.add(BtfKind.VAR, "limit", i, words=(1,))
    w.add(BtfKind.DATASEC, ".data", 4, 1, (w.count, 0, 4))
    w.add(BtfKind.DECL_TAG, "bpf_kfunc", read, words=(0xFFFFFFFF,))
    w.add(BtfKind.DECL_TAG, "first", read, words=(0,))
    return w


def ask_everything(raw):
    """The error at opening, or None. Whatever else a BTF is asked, only a BtfError may come out."""
    try:
        btf = Btf.read(raw)
    except BtfError as error:
        return error
    asks = [btf.type, btf.value, btf.members, btf.type_tags, btf.decl_tags, btf.function]
    for ask, type_id in itertools.product(asks, range(len(btf) + 1)):
        with contextlib.suppress(BtfError):
            ask(type_id)
    with contextlib.suppress(BtfError):
        btf.functions_named("read")
    with contextlib.suppress(BtfError):
        for func in btf.functions():
            with contextlib.suppress(KernelError):
                model_of(func)
    return None


def test_spelling_size_and_kind_of_every_kind():
    btf = one_of_each().btf()
    values = {(v.type, v.size, v.kind, v.signed) for v in map(btf.value, range(len(btf)))}
    assert values >= {
        ("void", 0, BtfKind.VOID, False),
        ("int", 4, BtfKind.INT, True),
        ("char", 1, BtfKind.INT, False),
        ("const char", 1, BtfKind.INT, False),
        ("const char *", 8, BtfKind.PTR, False),
        ("size_t", 8, BtfKind.INT, False),
        ("int[5]", 20, BtfKind.ARRAY, False),
        ("struct pair", 16, BtfKind.STRUCT, False),
        ("union either", 8, BtfKind.UNION, False),
        ("enum mode", 4, BtfKind.ENUM, False),
        ("enum wide", 8, BtfKind.ENUM64, False),
        ("union later", 0, BtfKind.FWD, False),
        ("double", 8, BtfKind.FLOAT, False),
        ("volatile int", 4, BtfKind.INT, True),
        ("restrict const char *", 8, BtfKind.PTR, False),
        ("struct pair *", 8, BtfKind.PTR, False),
        ("fn", 0, BtfKind.FUNC_PROTO, False),
    }


def test_functions_by_id_by_name_and_in_order():
    btf = one_of_each().btf()
    first, variadic, second = btf.functions()
    assert [f.linkage for f in (first, variadic, second)] == ["global", "extern", "static"]
    assert first.id < variadic.id < second.id
    assert btf.functions_named("read") == (first, second)
    assert btf.functions_named("nothing") == ()
    assert btf.function(second.id) == second
    args = (FuncArg("buf", "struct pair *", 8), FuncArg("n", "size_t", 8))
    assert first.model == FuncModel("read", args, 4, True)
    assert first.ret == Value(1, "int", 4, BtfKind.INT, True)
    assert second.model == FuncModel("read", (FuncArg("p", "struct pair", 16, is_struct=True),), 0, False)
    assert variadic.model.args[-1] == FuncArg("", "void", 0)
    assert [f.variadic for f in (first, variadic, second)] == [False, True, False]


def test_records_as_they_stand():
    btf = one_of_each().btf()
    by_kind = {btf.type(i).kind: btf.type(i) for i in range(len(btf))}
    assert set(by_kind) == set(BtfKind)
    assert (by_kind[BtfKind.ARRAY].type_id, by_kind[BtfKind.ARRAY].count, by_kind[BtfKind.ARRAY].size) == (1, 5, 0)
    assert (by_kind[BtfKind.UNION].name, by_kind[BtfKind.UNION].size, by_kind[BtfKind.UNION].count) == ("either", 8, 2)
    assert (by_kind[BtfKind.FWD].flag, by_kind[BtfKind.TYPE_TAG].name) == (True, "user")
    assert (by_kind[BtfKind.VAR].name, by_kind[BtfKind.VAR].type_id, by_kind[BtfKind.VAR].size) == ("limit", 1, 0)
    assert (by_kind[BtfKind.DATASEC].name, by_kind[BtfKind.DATASEC].size) == (".data", 4)


def test_tags():
    btf = one_of_each().btf()
    first = btf.functions_named("read")[0]
    assert btf.type_tags(first.values[0].type_id) == ("user",)
    assert btf.type_tags(first.values[1].type_id) == ()
    assert btf.decl_tags(first.id) == (DeclTag("bpf_kfunc", -1), DeclTag("first", 0))
    assert btf.decl_tags(1) == ()


def test_members_through_a_typedef_and_bit_fields():
    w = Writer()
    i = w.int("int", 4, SIGNED)
    s = w.struct("flags", 4, ("low", i, 3 << 24), ("high", i, 5 << 24 | 3), flag=True)
    alias = w.add(BtfKind.CONST, third=w.add(BtfKind.TYPEDEF, "flags_t", s))
    plain = w.struct("plain", 8, ("a", i, 0), ("b", i, 32))
    btf = w.btf()
    assert btf.members(alias) == (Member("low", i, 0, 3), Member("high", i, 3, 5))
    assert btf.members(plain) == (Member("a", i, 0, 0), Member("b", i, 32, 0))
    with pytest.raises(BtfError, match="type id 1 is INT, not a struct or union"):
        btf.members(i)


@pytest.mark.parametrize(
    ("params", "ret", "said"),
    [
        (["int"] * 13, "int", "has 13 arguments. Too many."),
        (["int", None], "int", "with variable args is unsupported."),
        ([None], "int", "with variable args is unsupported."),
        ([None, "int"], "int", "has malformed void argument."),
        (["const void"], "int", "arg0 type UNKNOWN is unsupported."),
        (["int", "big"], "int", "arg1 type STRUCT is unsupported."),
        (["empty"], "int", "has malformed void argument."),
        (["int", "union"], "int", "arg1 type UNION is unsupported."),
        (["double"], "int", "arg0 type FLOAT is unsupported."),
        (["int"], "pair", "return type STRUCT is unsupported."),
        (["int"], "union", "return type UNION is unsupported."),
        (["int"], "const void", "return type UNKNOWN is unsupported."),
        (["int"], "double", "return type FLOAT is unsupported."),
    ],
)
def test_what_the_kernel_refuses(params, ret, said):
    func = func_of(params, ret)
    with pytest.raises(KernelError) as refusal:
        model_of(func)
    assert (refusal.value.errno, refusal.value.what) == (22, f"The function f {said}")


def func_of(params, ret) -> Func:
    w = Writer()
    ids = {None: 0, "int": w.int("int", 4, SIGNED)}
    ids["const void"] = w.add(BtfKind.CONST)
    ids["big"] = w.struct("big", 17)
    ids["pair"] = w.struct("pair", 16)
    ids["empty"] = w.struct("empty", 0)
    ids["union"] = w.struct("u", 8, kind=BtfKind.UNION)
    ids["double"] = w.add(BtfKind.FLOAT, "double", 8)
    w.func("f", ids[ret], *((f"p{n}" if p else "", ids[p]) for n, p in enumerate(params)))
    return next(w.btf().functions())


def test_more_than_twelve_slots_are_not_supported():
    assert model_of(func_of(["pair"] * 6, None)).nr_regs == 12
    with pytest.raises(KernelError) as refusal:
        model_of(func_of(["pair"] * 6 + ["int"], None))
    assert refusal.value.errno == 524


def test_unions_by_value_where_the_kernel_takes_them():
    func = func_of(["union"], "int")
    assert model_of(func, union_args=True).args == (FuncArg("p0", "union u", 8, is_struct=True),)
    with pytest.raises(KernelError):
        model_of(func_of(["int"], "union"), union_args=True)


def test_a_prototype_that_cannot_be_relied_on_is_five_u64():
    model = model_of(None)
    assert [(a.type, a.size) for a in model.args] == [("u64", 8)] * 5
    assert (model.ret_size, model.ret_signed) == (8, False)


@pytest.mark.parametrize("kernel", KERNELS)
def test_kernels_recorded_the_same_prototypes(kernel):
    btf = Btf.read(FIXTURES / "btf" / f"{kernel}.btf.xz")
    compared = set()
    with gzip.open(FIXTURES / "golden" / f"{kernel}.jsonl.gz", "rt") as cases:
        for target in itertools.chain.from_iterable(json.loads(case)["targets"] for case in cases):
            if target["name"].startswith("@"):
                continue
            func = btf.function(target["btf_id"])
            args = [
                {"name": a.name, "type": a.type, "size": a.size, "kind": v.kind.name, "signed": a.signed}
                for a, v in zip(func.model.args, func.values, strict=True)
            ]
            ret = {f: getattr(func.ret, f) for f in ("type", "size", "signed")} | {"kind": func.ret.kind.name}
            assert (func.name, args, ret) == (target["name"], target["args"], target["ret"])
            assert func in btf.functions_named(func.name)
            assert model_of(func) == func.model
            compared.add(func.id)
    assert len(compared) >= 37


@pytest.mark.parametrize("kernel", KERNELS)
def test_kernels_refused_the_same_functions(kernel):
    btf = Btf.read(FIXTURES / "btf" / f"{kernel}.btf.xz")
    said = {
        "panic": "with variable args is unsupported.",
        "bpf_trace_run12": "has 13 arguments. Too many.",
        "ZSTD_createDCtx_advanced": "arg0 type STRUCT is unsupported.",
    }
    for name, fault in said.items():
        (func,) = btf.functions_named(name)
        with pytest.raises(KernelError) as refusal:
            model_of(func)
        assert refusal.value.what == f"The function {name} {fault}"


def test_compressed_and_from_a_file(tmp_path):
    raw = one_of_each().bytes()
    want = list(Btf(raw).functions())
    path = tmp_path / "vmlinux"
    path.write_bytes(raw)
    for source in (raw, memoryview(raw), lzma.compress(raw), gzip.compress(raw), path, str(path)):
        assert list(Btf.read(source).functions()) == want


def test_a_longer_header_and_a_gap():
    w = one_of_each()
    header = w.header(size=32, type_off=4, str_off=len(w.types) + 4)
    assert len(Btf(header + bytes(12) + w.types + w.strings)) == w.count + 1


@pytest.mark.parametrize(
    ("raw", "offset", "said"),
    [
        (b"", 0, "begins with nothing"),
        (b"\x7fELF\2\1", 0, "begins with 7f454c46"),
        (Writer(">").bytes(), 0, "big-endian BTF is not supported"),
        (b"\x9f\xeb\1\0", 4, "header is cut off: 4 of 24"),
        (one_of_each().bytes(version=2), 2, "version 2"),
        (one_of_each().bytes(flags=4), 3, "flags 0x4"),
        (one_of_each().bytes(size=16), 4, "header of 16 bytes"),
        (one_of_each().bytes(type_len=0), 12, "no types"),
        (one_of_each().bytes(type_off=2), 8, "words of 4 bytes"),
        (one_of_each().bytes(str_len=1 << 31), 16, "string section ends at byte"),
        (one_of_each().bytes(type_len=0xFFFFFFFC), 8, "type section ends at byte"),
        (one_of_each().bytes()[:-1], 16, "string section ends at byte"),
        (one_of_each().bytes()[:-1] + b"x", None, "begin and end with NUL"),
    ],
)
def test_header_faults_say_where(raw, offset, said):
    with pytest.raises(BtfError, match=said) as fault:
        Btf.read(raw)
    assert isinstance(fault.value, TrampolineError)
    assert fault.value.offset == (len(one_of_each().header()) + len(one_of_each().types) if offset is None else offset)


@pytest.mark.parametrize(
    ("record", "word", "said"),
    [
        ((20, ""), 1, "type id 2 is of the unknown kind 20"),
        ((0, ""), 1, "unknown kind 0"),
        ((BtfKind.STRUCT, "s", 4, 3), 0, r"type id 2 \(STRUCT, vlen 3\) reaches beyond the type section"),
        ((BtfKind.PTR, "", 99), 2, "type id 99 is not below 3 .*without its base"),
        ((BtfKind.FUNC, "f", 1), 2, "the prototype of a function is a INT"),
        ((BtfKind.FUNC_PROTO, "", 0, 2, (0, 1, 0, 7)), 6, "type id 7"),
        ((BtfKind.FUNC_PROTO, "", 0, 2, (0, 1, 5000, 1)), 5, "string offset 5000"),
        ((BtfKind.UNION, "", 4, 1, (0, 3, 0)), 4, "type id 3"),
        ((BtfKind.ARRAY, "", 0, 0, (1, 9, 5)), 4, "type id 9"),
        ((BtfKind.DATASEC, "", 0, 1, (9, 0, 0)), 3, "type id 9"),
        ((BtfKind.ENUM64, "", 8, 2, (0, 1, 2, 77, 1, 2)), 6, "string offset 77"),
    ],
)
def test_record_faults_say_where(record, word, said):
    w = Writer()
    w.int("int", 4)
    w.add(*record)
    with pytest.raises(BtfError, match=said) as fault:
        w.btf()
    assert fault.value.offset == 24 + 16 + 4 * word


def test_a_linkage_that_is_none():
    w = Writer()
    w.func("f", 0, linkage=3)
    with pytest.raises(BtfError, match="unknown linkage 3"):
        w.btf()


def test_loops_are_refused_and_depth_does_not_depend_on_the_order_of_asking():
    w = Writer()
    w.add(BtfKind.CONST, third=2)
    w.add(BtfKind.TYPEDEF, "t", 1)
    with pytest.raises(BtfError, match="in a loop"):
        w.btf().value(1)
    with pytest.raises(BtfError, match="in a loop"):
        w.btf().members(2)
    w = Writer()
    for target in range(MAX_DEPTH + 1):
        w.add(BtfKind.PTR, third=target)
    fresh, warm = w.btf(), w.btf()
    for type_id in range(1, MAX_DEPTH + 1):
        assert warm.value(type_id).type == "void" + " *" * type_id
    assert fresh.value(MAX_DEPTH) == warm.value(MAX_DEPTH)
    for btf in (fresh, w.btf(), warm):
        with pytest.raises(BtfError, match="deep"):
            btf.value(MAX_DEPTH + 1)


def test_ids_that_are_not_there():
    btf = one_of_each().btf()
    for ask in (btf.type, btf.value, btf.members, btf.function, btf.type_tags, btf.decl_tags):
        for type_id in (-1, len(btf)):
            with pytest.raises(BtfError, match=f"no type id {type_id}; the last is {len(btf) - 1}"):
                ask(type_id)
    with pytest.raises(BtfError, match="type id 1 is INT, not a function"):
        btf.function(1)


def test_a_name_without_end():
    w = Writer()
    w.int("x" * 512, 4)
    with pytest.raises(BtfError, match="longer than 511") as fault:
        w.btf().value(1)
    assert fault.value.offset == 24 + len(w.types) + 1


def test_files_that_cannot_be_read(tmp_path):
    for path in (tmp_path, tmp_path / "none", "a\0b"):
        with pytest.raises(BtfError, match="cannot read"):
            Btf.read(path)


@pytest.mark.parametrize("compress", [lzma.compress, gzip.compress])
def test_damaged_compression(compress):
    packed = compress(one_of_each().bytes())
    for damaged in (packed[:-5], packed[:8], packed[:40] + bytes(20) + packed[60:], packed + b"more"):
        with pytest.raises(BtfError, match=r"cut off|damaged|follow"):
            Btf.read(damaged)


def test_a_bomb_stays_small():
    bomb = lzma.compress(bytes(4 * MAX_SIZE), preset=0)
    tracemalloc.start()
    try:
        with pytest.raises(BtfError, match="more than"):
            Btf.read(bomb)
        assert tracemalloc.get_traced_memory()[1] < 3 * MAX_SIZE
    finally:
        tracemalloc.stop()


def test_truncated_anywhere():
    raw = one_of_each().bytes()
    for size in range(len(raw)):
        with pytest.raises(BtfError):
            Btf(raw[:size])


def test_mutations_give_only_btf_errors():
    draw = random.Random(1)
    raw = one_of_each().bytes()
    opened = []
    for _ in range(1500):
        mutant = bytearray(raw)
        for _ in range(draw.choice((1, 1, 2, 8))):
            at = draw.randrange(len(mutant))
            mutant[at] = draw.choice((0, 1, 0xFF, draw.randrange(256), mutant[at] ^ 1 << draw.randrange(8)))
        opened.append(ask_everything(bytes(mutant)) is None)
    assert set(opened) == {False, True}


@given(st.binary(max_size=200), st.booleans())
def test_random_bytes_give_only_btf_errors(noise, with_header):
    w = Writer()
    w.types = noise[: len(noise) // 4 * 4]
    raw = w.bytes() if with_header else noise
    error = ask_everything(raw)
    assert error is None or error.offset is None or 0 <= error.offset <= len(raw)
