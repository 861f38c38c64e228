"""Programs that were loaded for one prototype, on functions of another: the selftest's table, and each rule alone."""

from errno import EEXIST, EINVAL, ENOENT

import pytest

from btf_writer import Writer
from refusals import errno_of, refused
from trampoline.bpf.btf.btf import BtfKind
from trampoline.bpf.btf.c_declaration import read_types
from trampoline.bpf.btf.prototype_match import AttachFunc, btf_check_func_part_match
from trampoline.bpf.errors import KernelError, PrototypeError, TrampolineError
from trampoline.designs import DESIGNS
from trampoline.lab.prototypes import proto_in_btf

NOTHING = "xor eax, eax\nret"
SIGNED = 1
# What each program of prog_tests/tracing_multi_link reads: its functions (the first is its load-time target), the
# positions of the arguments that it reads, and whether it reads what is returned.
AGREE = [
    ("fentry", (1, 13), (0,), False),
    ("fentry", (2, 10), (0, 1), False),
    ("fentry", (1, 4), (2,), False),
    ("fentry", (1, 2), (2,), False),
    ("fexit", (1, 2, 3), (), True),
    ("fexit", (2, 12), (0, 1), True),
]
DIFFER = [
    ("fentry", (1, 2), (0,), False),
    ("fentry", (1, 4), (0,), False),
    ("fentry", (2, 13), (0, 1), False),
    ("fentry", (1, 12), (2,), False),
    ("fexit", (1, 4), (), True),
    ("fexit", (2, 10), (0, 1), True),
    ("fexit", (2, 11), (0, 1), True),
]
TWICE = [("fentry", (1, 1)), ("fentry", (2, 2))]


def names_of(numbers):
    return [f"bpf_testmod:bpf_testmod_test_struct_arg_{number}" for number in numbers]


@pytest.fixture
def testmod(make_lab):
    lab = make_lab("6.12", design="batched")
    lab.load_testmod()
    return lab


def loaded(lab, kind, names, args, ret):
    return lab.prog(
        f"{kind}_multi", NOTHING, name="reader", attach_func=names[0], accessed_args=args, accesses_ret=ret
    )


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize(("kind", "numbers", "args", "ret"), AGREE)
def test_prototypes_that_agree_in_what_is_read(make_lab, design, kind, numbers, args, ret):
    lab, names = make_lab("6.12", design=design), names_of(numbers)
    lab.load_testmod()
    prog = loaded(lab, kind, names, args, ret)
    if refusal := errno_of(lambda: [lab.design.check(lab.target(name), prog) for name in names]):
        refused(refusal, lab.attach_multi, prog, names)
        return
    link = lab.attach_multi(prog, names)
    assert lab.call(names[0], 1, 2, 3, 4).value == 10
    link.detach()


@pytest.mark.parametrize(("kind", "numbers", "args", "ret"), DIFFER)
def test_prototypes_that_differ_in_what_is_read(testmod, kind, numbers, args, ret):
    names = names_of(numbers)
    prog = loaded(testmod, kind, names, args, ret)
    with pytest.raises(KernelError, match=rf"^{names[-1]} (has|returns) .*{names[0]}") as caught:
        testmod.attach_multi(prog, names)
    assert caught.value.errno == EINVAL
    assert len(testmod.trampolines) == 0
    link = testmod.attach_multi(prog, names, skip_invalid=True)
    assert link.functions == (names[0],)
    assert [(skipped.name, skipped.errno) for skipped in link.skipped] == [(names[-1], EINVAL)]


@pytest.mark.parametrize(("kind", "numbers"), TWICE)
def test_a_function_twice_is_refused_whatever_is_read(testmod, kind, numbers):
    names = names_of(numbers)
    prog = loaded(testmod, kind, names, (0,), False)
    # -EEXIST is what the series answers, -EINVAL what mainline does.
    assert errno_of(lambda: testmod.attach_multi(prog, names)) in (EINVAL, EEXIST)
    assert len(testmod.trampolines) == 0


def test_without_a_load_time_target_nothing_is_compared(testmod):
    numbers = range(1, 14)
    names = [name for name in names_of(numbers) if not name.endswith("_9")]
    link = testmod.attach_multi(testmod.prog("fexit_multi", NOTHING), names)
    assert testmod.call(names[0], 1, 2, 3, 4).value == 10
    link.detach()


def test_the_new_functions_mean_what_the_others_do(testmod):
    call, machine = testmod.call, testmod.kernel.machine
    function = names_of(range(14))
    assert call(function[10], 1, 2, 3).value == 6
    assert call(function[11], 1, 2, 3, 4).value == 10
    assert call(function[13], 2, 3).value == 5
    address = testmod.kernel.slab.alloc(8, "int *c")
    machine.write_u64(address, 4)
    assert call(function[12], 1, 2, 3, address).value == 10


def test_what_a_program_can_not_be_loaded_for(testmod):
    [one] = names_of([1])

    def load(kind="fexit_multi", **options):
        return testmod.prog(kind, NOTHING, **options)

    refused(EINVAL, load, attach_func=one, accessed_args={3})
    refused(EINVAL, load, attach_func=one, accessed_args={-1})
    refused(EINVAL, load, "fentry_multi", attach_func=one, accesses_ret=True)
    refused(EINVAL, load, attach_func="migrate_disable")
    refused(ENOENT, load, attach_func="no_such_function")
    with pytest.raises(TrampolineError, match="which one"):
        load(accesses_ret=True)
    with pytest.raises(TrampolineError, match="no other"):
        load("fexit", attach_func=one)
    assert not [name for name in testmod.kernel.execmem.images.values() if name.startswith("bpf_prog")]


# Each rule alone, on declarations and on BTF ------------------------------------------------------------------------

TYPES = (
    "struct pair { long a; long b; }; struct other { long a; long b; }; struct three { int a, b, c; };"
    "struct same { int a; int b; }; union same_size { int a; int b; }; enum two { A, B }; enum three_ { C, D, E };"
    "typedef struct pair pair_t; typedef pair_t *pair_ptr; typedef int number;"
)
SAME = [
    ("int", "int"),
    ("int", "u32"),
    ("number", "int"),
    ("enum two", "enum two"),
    ("pair_t", "struct pair"),
    ("struct pair *", "const struct pair *"),
    ("pair_ptr", "struct pair *"),
    ("struct pair *", "pair_t *"),
    ("union same_size *", "union same_size *"),
    ("struct pair *", "struct pair[2]"),
]
OTHER = [
    ("int", "long"),
    ("int", "enum two"),
    ("enum two", "enum three_"),
    ("struct pair", "struct other"),
    ("struct pair", "long"),
    ("struct same", "union same_size"),
    ("struct pair *", "struct other *"),
    ("struct pair *", "void *"),
    ("struct pair *", "struct pair **"),
    ("void *", "const void *"),
    ("int *", "int *"),
    ("float", "float"),
    ("u64", "struct pair *"),
]


def declared(*types, ret="int"):
    def named(type_, number):
        base, array, count = type_.partition("[")
        return f"{base} a{number}{array}{count}"

    args = ", ".join(named(type_, number) for number, type_ in enumerate(types)) or "void"
    return read_types(f"{TYPES} {ret} f({args});")


def match(one, other, *args, ret=False):
    """The error code of a program that is loaded for ``one`` on ``other``."""
    return errno_of(lambda: btf_check_func_part_match(AttachFunc.of("one", one, args, ret=ret), "other", other))


@pytest.mark.parametrize(("one", "other"), SAME)
def test_types_that_agree(one, other):
    # The second argument differs, so that the prototypes are not identical.
    assert match(declared(one, "int"), declared(other, "long"), 0) == 0
    assert match(declared(one, "int"), declared(other, "long"), 0, 1) == EINVAL


@pytest.mark.parametrize(("one", "other"), OTHER)
def test_types_that_do_not(one, other):
    assert match(declared(one, "int"), declared(other, "long"), 0) == EINVAL
    assert match(declared(one, "int"), declared(other, "long")) == 0


def test_the_identical_prototype_is_not_compared():
    assert match(declared("void *", "int *"), declared("void *", "int *"), 0, 1, ret=True) == 0


def test_arguments_are_found_by_their_offset():
    two = declared("struct pair", "int")
    assert match(two, declared("long", "long", "int"), 1) == 0
    # Inside an argument, and behind the last.
    assert match(declared("long", "int"), declared("struct pair"), 1) == EINVAL
    assert match(two, declared("struct pair"), 1) == EINVAL
    # A struct of 12 bytes takes two slots.
    assert match(two, declared("struct three", "int"), 1) == 0


def test_the_return_value_stands_behind_all_arguments():
    one = declared("struct pair", "int")
    assert match(one, declared("long", "long", "long"), ret=True) == 0
    assert match(one, declared("struct pair"), ret=True) == EINVAL
    assert match(one, declared("struct pair", "int", ret="long"), ret=True) == EINVAL
    assert match(one, declared("struct pair", "int", ret="long")) == 0
    assert match(one, declared("struct pair", "int", ret="void"), ret=True) == EINVAL
    pointers = declared(ret="struct pair *"), declared(ret="struct other *"), declared("int", ret="struct pair *")
    assert [match(pointers[0], other, ret=True) for other in pointers] == [0, EINVAL, EINVAL]
    refused(EINVAL, AttachFunc.of, "one", declared(ret="void"), (), ret=True)


def test_a_struct_that_is_only_named_has_any_members():
    named, defined = read_types("int f(struct s *a, int b);"), read_types("struct s { int x; }; int f(struct s *a);")
    assert match(named, defined, 0) == match(defined, named, 0) == 0


def test_declarations_that_are_no_prototypes():
    for text in ("int f(a, b)", "int x", "int f("):
        with pytest.raises(PrototypeError):
            read_types(text)
    refused(EINVAL, read_types, "int f(int a, ...)")


@pytest.fixture
def written():
    """BTF of functions that take one thing and an int, by what that is."""
    w = Writer()
    i, long = w.int("int", 4, SIGNED), w.int("long", 8, SIGNED)
    pair = w.struct("pair", 16, ("a", long, 0), ("b", long, 64))
    more = w.struct("pair", 16, ("a", long, 0), ("b", i, 64), ("c", i, 96))
    flagged = w.struct("pair", 16, ("a", long, 0), ("b", long, 64), flag=True)
    const_pair = w.add(BtfKind.CONST, third=pair)
    types = {
        "int": i, "unsigned": w.int("unsigned int", 4), "long": long, "pair": pair, "more": more, "flagged": flagged,
        "pair_t": w.add(BtfKind.TYPEDEF, "pair_t", const_pair), "pair *": w.add(BtfKind.PTR, third=pair),
        "const pair *": w.add(BtfKind.PTR, third=const_pair), "more *": w.add(BtfKind.PTR, third=more),
        "int *": w.add(BtfKind.PTR, third=i), "void *": w.add(BtfKind.PTR),
        "enum": w.add(BtfKind.ENUM, "e", 4, 1, (w.name("A"), 1)),
        "wide": w.add(BtfKind.ENUM64, "w", 8, 1, (w.name("B"), 1, 0)),
        "fwd *": w.add(BtfKind.PTR, third=w.add(BtfKind.FWD, "pair")),
    }  # fmt: skip
    ids = {name: w.func(f"takes {name}", i, ("a", type_id), ("b", i)) for name, type_id in types.items()}
    # The same prototype as another function's, by another name.
    ids["twin"] = w.add(BtfKind.FUNC, "twin", ids["int *"] - 1)
    btf = w.btf()
    return {name: proto_in_btf(btf, func_id) for name, func_id in ids.items()}


@pytest.mark.parametrize(
    ("one", "agree"),
    {
        "int": {"int", "unsigned"},
        "pair": {"pair", "pair_t"},
        # A pointer's struct is known by its name alone, and must be there.
        "pair *": {"pair *", "const pair *", "more *"},
        "int *": {"int *", "twin"},
        "void *": {"void *"},
        "fwd *": {"fwd *"},
        "enum": {"enum"},
        "wide": {"wide"},
        "more": {"more"},
        "flagged": {"flagged"},
    }.items(),
)
def test_types_of_btf(written, one, agree):
    assert {other for other, proto in written.items() if not match(written[one], proto, 0)} == agree


def test_declarations_against_btf(written):
    assert match(declared("struct pair", "long"), written["pair"], 0) == 0
    # A declaration has no flag, but a number of members where it defines the struct.
    assert match(declared("struct pair", "long"), written["flagged"], 0) == 0
    assert match(declared("struct pair", "long"), written["more"], 0) == EINVAL
    assert match(written["pair *"], declared("struct pair *"), 0) == 0
    assert match(written["pair *"], declared("struct other *"), 0) == EINVAL


def test_functions_of_a_kernel_with_btf(make_lab):
    w = Writer()
    i, long = w.int("int", 4, SIGNED), w.int("long", 8, SIGNED)
    file, inode = (w.add(BtfKind.PTR, third=w.struct(name, 8, ("a", long, 0))) for name in ("file", "inode"))
    w.func("reads_file", i, ("file", file), ("n", long))
    w.func("closes_file", i, ("file", file))
    w.func("reads_inode", i, ("inode", inode), ("n", long))
    lab = make_lab("6.12", btf=w.btf(), design="batched")
    files = ["reads_file", "closes_file"]
    prog = lab.prog("fentry_multi", NOTHING, attach_func="reads_file", accessed_args={0})
    lab.attach_multi(prog, files).detach()
    with pytest.raises(KernelError, match=r"^reads_inode has struct inode \* inode at byte 0.* struct file \* file of"):
        lab.attach_multi(prog, [*files, "reads_inode"])
    count = lab.prog("fentry_multi", NOTHING, attach_func="reads_file", accessed_args={1})
    lab.attach_multi(count, ["reads_file", "reads_inode"]).detach()
    refused(EINVAL, lab.attach_multi, count, files)
