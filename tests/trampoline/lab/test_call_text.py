"""Calls as users write them."""

import pytest

from trampoline.bpf.btf.c_declaration import parse_model
from trampoline.bpf.errors import TrampolineError
from trampoline.lab.call_text import Argument, CallText


@pytest.mark.parametrize(
    ("text", "function", "args"),
    [
        ("f()", "f", []),
        (" bpf_fentry_test2( 2 , -3 ) ", "bpf_fentry_test2", [Argument((2,)), Argument(((1 << 64) - 3,))]),
        ("mod:f(0xffffffffffffffff)", "mod:f", [Argument(((1 << 64) - 1,))]),
        ('f("a\\n, b")', "f", [Argument((0,), b"a\n, b\0")]),
        ("f(&-1)", "f", [Argument((0,), b"\xff" * 8 + bytes(56))]),
        ("f({2, 3}, 4)", "f", [Argument((2, 3)), Argument((4,))]),
    ],
)
def test_calls(text, function, args):
    assert CallText.parse(text) == CallText(function, tuple(args), text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is not a call"),
        ("f", "is not a call"),
        ("f(1", "is not a call"),
        ("1(2)", "is not a call"),
        ("f(1 2)", "argument 1"),
        ("f(,)", "argument 1"),
        ("f(one)", "'one' is not a number"),
        ("f({1, x})", "'x' is not a number"),
        ("f(0x1ffffffffffffffff)", "64 bits"),
        ('f("a)', "argument 1"),
    ],
)
def test_what_is_no_call_is_refused_with_its_place(text, says):
    with pytest.raises(TrampolineError, match=says):
        CallText.parse(text)


@pytest.mark.parametrize(
    ("prototype", "call", "registers", "stack"),
    [
        ("int f(int a, u64 b)", "f(1, 2)", (1, 2), ()),
        ("struct s { long a, b; }; int f(int a, struct s b, int c)", "f(1, {2, 3}, 4)", (1, 2, 3, 4), ()),
        (
            "struct s { long a, b; }; int f(u64 a, u64 b, u64 c, u64 d, u64 e, struct s f, int g)",
            "f(1, 2, 3, 4, 5, {6, 7}, 8)",
            (1, 2, 3, 4, 5, 8),
            (6, 7),
        ),
    ],
)
def test_arguments_travel_as_the_compiler_has_it(lab, prototype, call, registers, stack):
    placed = CallText.parse(call).place(parse_model(prototype), lab.kernel)
    assert (placed.registers, placed.stack) == (registers, stack)


def test_what_a_pointer_points_to_is_guest_memory(lab):
    used = lab.kernel.slab.used
    placed = CallText.parse('f("hi", &5)').place(parse_model("int f(char *a, int *b)"), lab.kernel)
    text, number = placed.registers
    assert lab.kernel.machine.read(text, 3) == b"hi\0"
    assert lab.kernel.machine.read_u64(number) == 5
    placed.free(lab.kernel)
    assert lab.kernel.slab.used == used


@pytest.mark.parametrize("call", ["f(1)", "f(1, 2, 3)", "f(1, {2, 3})"])
def test_other_arguments_than_the_function_has(lab, call):
    with pytest.raises(TrampolineError, match="argument"):
        CallText.parse(call).place(parse_model("int f(int a, int b)"), lab.kernel)


def test_a_refused_call_leaves_no_memory(lab):
    used = lab.kernel.slab.used
    with pytest.raises(TrampolineError, match="argument 2"):
        CallText.parse('f("text", {1, 2})').place(parse_model("int f(char *a, int b)"), lab.kernel)
    assert lab.kernel.slab.used == used
