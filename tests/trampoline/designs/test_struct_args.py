"""Structs by value and arguments on the stack, in every design: the calls of tracing_struct and *_many_args."""

import struct

import pytest

from trampoline.bpf.errors import KernelError
from trampoline.designs import DESIGNS

CALLS = {
    # Register words, words on the stack, what the program sees, what the function returns.
    "bpf_testmod_test_struct_arg_1": ((2, 3, 1, 4), (), (struct.pack("<qq", 2, 3), 1, 4), 10),
    "bpf_testmod_test_struct_arg_2": ((1, 2, 3, 4), (), (1, struct.pack("<qq", 2, 3), 4), 10),
    "bpf_testmod_test_struct_arg_3": ((1, 4, 2, 3), (), (1, 4, struct.pack("<qq", 2, 3)), 10),
    "bpf_testmod_test_struct_arg_4": (
        (10, 1, 2, 3, 2, 3), (), (struct.pack("<i", 10), 1, 2, 3, struct.pack("<qq", 2, 3)), 21,
    ),
    "bpf_testmod_test_struct_arg_7": (
        (16, 17, 18, 19, 20), (21, 22), (16, 17, 18, 19, 20, struct.pack("<Qi4x", 21, 22)), 133,
    ),
    "bpf_testmod_test_struct_arg_8": (
        (16, 17, 18, 19, 20, 23), (21, 22), (16, 17, 18, 19, 20, struct.pack("<Qi4x", 21, 22), 23), 156,
    ),
    "bpf_testmod_fentry_test7": ((16, 17, 18, 19, 20, 21), (22,), (16, 17, 18, 19, 20, 21, 22), 133),
    "bpf_testmod_fentry_test11": (
        (16, 17, 18, 19, 20, 21), (22, 23, 24, 25, 26), (16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26), 231,
    ),
}  # fmt: skip
ON_STACK = {name for name, call in CALLS.items() if call[1]}
REFUSED = {
    "generic": {"bpf_testmod_test_struct_arg_7", "bpf_testmod_test_struct_arg_8"},
    "tracing-multi-v2": ON_STACK,
    "tracing-multi-v2-fixed": ON_STACK,
    "tracing-multi-v1": ON_STACK,
}


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("flavour", ["6.12", "7.2"])
@pytest.mark.parametrize("kind", ["fentry", "fexit", "fmod_ret"])
def test_struct_and_stack_arguments(make_lab, design, flavour, kind):
    lab = make_lab(flavour, design=design)
    lab.load_testmod()
    for name, (registers, stack, args, value) in CALLS.items():
        seen = []
        prog = lab.prog(f"{kind}_multi", lambda ctx, seen=seen: seen.append((ctx.args, ctx.cookie)))
        names = [f"bpf_testmod:{name}", "bpf_fentry_test1"]
        if name in REFUSED.get(design, ()):
            with pytest.raises(KernelError, match="argument"):
                lab.attach_multi(prog, names, cookies=[1, 2])
            continue
        link = lab.attach_multi(prog, names, cookies=[1, 2])
        assert lab.call(name, *registers, stack_args=stack).value == value
        assert seen == [(args, 1)], name
        link.detach()
        assert lab.call(name, *registers, stack_args=stack).value == value
