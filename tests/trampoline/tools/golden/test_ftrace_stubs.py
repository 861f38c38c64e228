"""ftrace's stubs, instruction by instruction, against those that a real kernel had in memory."""

import re

import pytest

from asm import decode
from emu.kernel.ftrace.ops import FtraceOps, FtraceOpsFlag
from paths import FIXTURES
from trampoline.tools.golden.trampoline_case import read_cases

GOLDEN = FIXTURES / "golden" / "7.2.jsonl.gz"
# What depends on where things stand: callees, data, and the target of a jump.
PLACE = re.compile(r"\[rip [+-] 0x[0-9a-f]+\]|^0x[0-9a-f]+$")


@pytest.fixture(scope="module")
def recorded():
    """Code of ftrace's stubs in the case that has each first."""
    found = {}
    for case in read_cases(GOLDEN):
        if case.run == "72-nokaslr-mitoff":
            for image in case.images:
                if image.kind == "ftrace":
                    name = "kmulti" if case.name.startswith("kmulti/1") else case.name
                    # Behind a plain return stands an int3, which our copies do without.
                    found.setdefault((name, image.sym), (image.addr, image.code.rstrip(b"\xcc")))
    return found


def instructions(code, address):
    """Mnemonics and operands without what depends on addresses."""
    return [(i.mnemonic, PLACE.sub("place", i.operands)) for i in decode(code, address)]


@pytest.mark.parametrize(
    ("key", "flags"),
    [
        (("ftr/5-kprobe-only", "ftrace_trampoline"), FtraceOpsFlag.SAVE_REGS),
        (("kmulti", "ftrace_trampoline"), FtraceOpsFlag(0)),
    ],
)
def test_a_private_trampoline(make_lab, recorded, key, flags):
    kernel = make_lab("7.2").kernel
    ops = FtraceOps("ops", "ftrace_stub", flags, filter={kernel.function("bpf_fentry_test1").site})
    kernel.ftrace.register_ftrace_function(ops)
    address, code = recorded[key]
    assert instructions(kernel.machine.read(ops.trampoline, len(code)), ops.trampoline) == instructions(code, address)


def test_ftrace_regs_caller(make_lab, recorded):
    kernel = make_lab("7.2").kernel
    stub = kernel.function("ftrace_regs_caller")
    address, code = recorded["ftr/3-ftrace-then-x", "ftrace_regs_caller"]
    ours = [i for i in instructions(kernel.machine.read(stub.address, stub.size), stub.address) if i[0] != "int3"]
    theirs = [i for i in instructions(code, address) if i[0] != "int3"]
    assert ours == theirs[: len(ours)]
