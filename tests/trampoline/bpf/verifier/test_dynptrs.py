"""Dynptrs: programs as text, and what kernels say to them."""

from errno import EACCES, EINVAL

import pytest

from mini_kernel import answer

LOOKUP = "*(u64 *)(r10 -24) = 0 / r1 = map[fd:1] ll / r2 = r10 / r2 += -24 / call 1 / if r0 == 0 goto L / "
PTR = "r{n} = r10 / r{n} += -16 / "
FROM_MEM = LOOKUP + "r1 = r0 / r2 = 16 / r3 = 0 / " + PTR.format(n=4) + "call 197 / "
RESERVE = "r1 = map[fd:2] ll / r2 = 16 / r3 = 0 / " + PTR.format(n=4) + "call 198 / "
DATA = PTR.format(n=1) + "r2 = 0 / r3 = 8 / call 203 / "
READ = "r1 = r10 / r1 += -32 / r2 = 8 / " + PTR.format(n=3) + "r4 = 0 / r5 = 0 / call 201 / "
SUBMIT = PTR.format(n=1) + "r2 = 0 / call 199 / "
END = "L: / r0 = 0 / exit"

CASES = [
    (FROM_MEM + READ + END, 0, ""),
    (FROM_MEM + DATA + "if r0 == 0 goto L / r1 = *(u64 *)(r0 +0) / " + END, 0, ""),
    (FROM_MEM + DATA + "r1 = *(u64 *)(r0 +0) / " + END, EACCES, "R0 invalid mem access 'mem_or_null'"),
    (FROM_MEM + DATA + "if r0 == 0 goto L / r1 = *(u64 *)(r0 +1) / " + END, EACCES, "outside of the allowed memory"),
    (READ + END, EINVAL, "Expected an initialized dynptr as arg #3"),
    (FROM_MEM + "*(u64 *)(r10 -8) = 0 / " + READ + END, EINVAL, "Expected an initialized dynptr as arg #3"),
    (
        FROM_MEM + DATA + "if r0 == 0 goto L / *(u64 *)(r10 -8) = 0 / r1 = *(u64 *)(r0 +0) / " + END,
        EACCES,
        "R0 invalid mem access 'scalar'",
    ),
    (FROM_MEM + SUBMIT + END, EINVAL, "arg 1 is an unacquired reference"),
    (RESERVE + SUBMIT + END, 0, ""),
    (RESERVE + END, EINVAL, "nreleased reference"),
    (RESERVE + SUBMIT + READ + END, EINVAL, "Expected an initialized dynptr as arg #3"),
    (RESERVE + "*(u64 *)(r10 -8) = 0 / " + SUBMIT + END, EINVAL, "cannot overwrite referenced dynptr"),
    (RESERVE + DATA + "if r0 == 0 goto +1 / *(u64 *)(r0 +0) = 1 / " + SUBMIT + END, 0, ""),
    (
        "r1 = r10 / r1 += -40 / r2 = 8 / r3 = 0 / *(u64 *)(r10 -40) = 0 / " + PTR.format(n=4) + "call 197 / " + END,
        EACCES,
        "Unsupported reg type fp for bpf_dynptr_from_mem data",
    ),
]


@pytest.mark.parametrize("release", ["6.1", "6.12", "7.2"])
@pytest.mark.parametrize(("text", "errno", "message"), CASES)
def test_kernels_say_of_a_dynptr(text, errno, message, release):
    got, said = answer(text, "fentry", release)
    assert (got, message in said) == (errno, True), said
