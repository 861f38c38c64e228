"""Calls of a real kernel's functions as text."""

import pytest

from trampoline.bpf.errors import TrampolineError
from trampoline.lab.kernel_call import KernelCall


def test_every_kind_of_argument():
    call = KernelCall.parse(r'  f(1, -1, 0x10, "a\n", &5, current, zero:64) ')
    assert call.function == "f"
    assert call.arguments == (1, 2**64 - 1, 16, b"a\n\0", (5).to_bytes(8, "little") + bytes(56), "current", "zero:64")
    assert KernelCall.parse("f()").arguments == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("f", "is not a call"),
        ("f(1", "is not a call"),
        ("f(task)", "'task' is not a number"),
        (r'f("\x")', "wrong escape"),
        ('f("\ud800")', "wrong escape or character"),
        ("f(1, zero:x)", "argument 2 is not a number"),
        ("f(0x10000000000000000)", "more than 64 bits"),
    ],
)
def test_what_is_no_call_is_refused(text, message):
    with pytest.raises(TrampolineError, match=message):
        KernelCall.parse(text)
