"""What the verifier accepts runs without a fault, and it accepts what is written to be accepted."""

from collections import Counter
from contextlib import suppress
from random import Random

import pytest
from kernel_releases import RECORDED, RELEASES, kernel_view

from bpf_interpreter import Interpreter, InterpreterError, Memory
from bpf_programs import random_program
from emu.errors import EmuError
from paths import FIXTURES
from trampoline.bpf.btf.btf import Btf
from trampoline.bpf.errors import BytecodeError, TrampolineError
from trampoline.bpf.isa import decode, encode
from trampoline.bpf.program import BpfProgram
from trampoline.bpf.standalone import BareMachine
from trampoline.bpf.uapi import ProgFlag, ProgType
from trampoline.bpf.verifier.walk.bpf_check import bpf_check

BTF = FIXTURES / "btf"
CONTEXT_SIZE = 1 << 16
"""What a syscall program may reach of its context (U16_MAX)."""


def verify(insns, kernel):
    bpf_check(BpfProgram("random", tuple(insns), ProgType.SYSCALL, flags=ProgFlag.SLEEPABLE), kernel)


def is_long(insns, context):
    """Whether a program runs on and on: verifying it would take as long."""
    interpreter = Interpreter(insns, Memory({0x1000: context}), max_steps=5000)
    with suppress(InterpreterError, KeyError):
        interpreter.run(0x1000)
    return interpreter.steps == interpreter.max_steps


@pytest.mark.parametrize("release", RECORDED)
def test_programs_are_accepted_and_do_nothing_else_when_bytes_of_them_change(release):
    kernel, machine = kernel_view(release, Btf.read(BTF / f"{release}.btf.xz")), BareMachine(RELEASES[release])
    random, seen = Random(release), Counter()
    for _ in range(25):
        example = random_program(random, RELEASES[release].isa, verifiable=True)
        verify(example.insns, kernel)
        for _ in range(3):
            data = bytearray(encode(example.insns))
            data[random.randrange(len(data))] = random.choice((0, 1, 8, 0xFF, random.randrange(256)))
            try:
                insns = decode(bytes(data))
                if is_long(insns, example.context):
                    continue
                verify(insns, kernel)
            except (TrampolineError, EmuError) as error:
                seen[type(error)] += 1
                continue
            try:
                machine.load(insns)
            except BytecodeError:  # a kernel is needed
                continue
            machine.run(example.context.ljust(CONTEXT_SIZE, b"\0"))
            seen["ran"] += 1
    assert len(seen) >= 3
    assert seen["ran"] > 5
    machine.close()
