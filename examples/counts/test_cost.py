"""What it costs to trace a function, held by the baseline beside this file."""

import pytest

PROGRAM = "xor eax, eax\nret"


@pytest.mark.parametrize("kind", ["fentry", "fexit"])
def test_a_program_on_one_function(tracing, icount, kind):
    tracing.attach(tracing.prog(kind, PROGRAM), "bpf_fentry_test1")
    icount.check(kind, tracing.call("bpf_fentry_test1", 1))


@pytest.mark.tracing("7.2", config="lazy", design="batched")
def test_two_programs_on_two_functions(tracing, icount):
    for name in ("first", "second"):
        tracing.attach_multi(tracing.prog("fexit_multi", PROGRAM, name=name), ["bpf_fentry_test1", "bpf_fentry_test2"])
    icount.check("two on two", tracing.call("bpf_fentry_test2", 1, 2), hard="2%")
