import pytest

from emu.kernel.errors import KernelError
from trampoline.bpf.btf.c_declaration import parse_model
from trampoline.bpf.errors import PrototypeError


@pytest.mark.parametrize(
    ("declaration", "sizes", "returns"),
    [
        ("int f(int a)", [4], 4),
        ("void f(void)", [], 0),
        ("int f()", [], 4),
        ("long long f(loff_t *p, char b, _Bool c, short int d, unsigned e)", [8, 1, 1, 2, 4], 8),
        ("u32 f(u8 a, __u16 b, s32 c, __u64 d, size_t e)", [1, 2, 4, 8, 8], 4),
        ("struct page *f(enum zone z, int (*cb)(int), const char *const *names)", [4, 8, 8], 8),
        ("struct s { int a; char c[3]; }; void f(struct s x, struct s *y)", [8, 8], 0),
        ("struct s { long a, b; }; int f(int x, struct s y);", [4, 16], 4),
        ("union u { long a; char b[9]; }; int f(union u x)", [16], 4),
    ],
)
def test_sizes_come_from_the_declaration(declaration, sizes, returns):
    model = parse_model(declaration)
    assert [arg.size for arg in model.args] == sizes
    assert model.ret_size == returns


def test_signs():
    model = parse_model("int f(char a, unsigned char b, s16 c, u16 d, long e, size_t f, void *g)")
    assert [arg.signed for arg in model.args] == [True, False, True, False, True, False, False]


def test_a_struct_that_does_not_fit_leaves_its_register_to_a_later_argument():
    model = parse_model("struct s { u64 a; int b; }; int f(u64 a, u64 b, u64 c, u64 d, u64 e, struct s f, int g)")
    assert model.placement()[-2:] == [(0, False), (5, True)]
    assert (model.nr_regs, model.nr_stack_slots) == (8, 2)


def test_a_struct_whose_size_is_given():
    assert parse_model("int f(struct sockptr p)", {"struct sockptr": 16}).nr_regs == 2
    assert parse_model("int f(sockptr_t p)", {"sockptr_t": 16}).args[0].slots == 2


@pytest.mark.parametrize(
    ("declaration", "message"),
    [
        ("int f(", "cannot read"),
        ("f", "cannot read"),
        ("", "found 0"),
        ("int f(int); int g(int)", "found 2"),
        ("int f(foo)", "'foo'"),
        ("int f(struct q x)", "struct q"),
        ("int x", "found 0"),
    ],
)
def test_what_cannot_be_read_names_the_fault(declaration, message):
    with pytest.raises(PrototypeError, match=message):
        parse_model(declaration)


@pytest.mark.parametrize(
    ("declaration", "code"),
    [
        ("int f(int a, ...)", 22),
        ("struct s { long a[3]; }; int f(struct s x)", 22),
        ("struct s { int a; }; struct s f(void)", 22),
        ("int f(void, int)", 22),
        ("int f(" + ", ".join(["int"] * 13) + ")", 22),
        ("struct s { long a, b; }; int f(" + ", ".join(["struct s"] * 7) + ")", 524),
    ],
)
def test_what_the_kernels_model_refuses(declaration, code):
    with pytest.raises(KernelError) as caught:
        parse_model(declaration)
    assert caught.value.errno == code
