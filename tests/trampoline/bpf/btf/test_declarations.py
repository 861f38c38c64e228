"""Types from C declarations behind a kernel's own."""

import pytest

from btf_writer import Writer
from trampoline.bpf.btf.btf import BtfKind
from trampoline.bpf.btf.declarations import with_declarations
from trampoline.bpf.errors import PrototypeError

STRUCTS = "struct pair { int a; u64 b[2]; }; union both { char c; long l; };"


@pytest.fixture(scope="module")
def base():
    w = Writer()
    number = w.int("int", 4, 1)
    w.struct("task_struct", 8, ("pid", number, 0))
    w.func("known", number, ("a", number))
    return w.btf()


def test_types_of_the_kernel_stay(base):
    more = with_declarations(base, ["int f(int a)"])
    for type_id in range(len(base)):
        assert more.type(type_id) == base.type(type_id)
    assert len(more.functions_named("known")) == 1


def test_functions_have_their_types(base):
    btf = with_declarations(
        base, [STRUCTS + "long f(struct pair p, union both *b, struct task_struct *t, u8 n, bool yes)", "void g(void)"]
    )
    (f,), (g,) = btf.functions_named("f"), btf.functions_named("g")
    assert str(f.model) == "f(struct pair p, union both * b, struct task_struct * t, u8 n, bool yes)"
    assert [value.size for value in f.values] == [24, 8, 8, 1, 1]
    assert (g.values, g.ret.kind) == ((), BtfKind.VOID)
    pair = btf.members(f.values[0].type_id)
    assert [(member.name, member.bit_offset) for member in pair] == [("a", 0), ("b", 64)]
    assert btf.value(pair[1].type_id).size == 16
    task = btf.unmodified(btf.unmodified(f.values[2].type_id).type_id)
    assert task.id == base.struct_named("task_struct")


def test_a_type_is_written_once(base):
    one = with_declarations(base, [STRUCTS + "int f(struct pair p, struct pair *q)"])
    two = with_declarations(base, [STRUCTS + "int f(struct pair p, struct pair *q)"] * 2)
    records = [two.type(type_id) for type_id in range(len(two))]
    assert sum(record.kind is BtfKind.STRUCT and record.name == "pair" for record in records) == 1
    assert len(one) < len(two)


def test_a_declaration_that_can_not_be_read(base):
    with pytest.raises(PrototypeError):
        with_declarations(base, ["int f(struct unknown s)"])
