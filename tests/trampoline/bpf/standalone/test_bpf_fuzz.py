"""Bytes at random as programs: whatever they are, an answer or one of this package's errors."""

from collections import Counter
from random import Random

import pytest
from kernel_releases import RELEASES

from bpf_programs import HELPERS, random_program
from trampoline.bpf.errors import BytecodeError, TrampolineError
from trampoline.bpf.isa import Insn, decode, encode, fault, format_insn, format_program, parse
from trampoline.bpf.isa.forms import LOADABLE, REWRITTEN
from trampoline.bpf.isa.insn import EXIT, Cls, Jmp
from trampoline.bpf.jit.bpf_int_jit_compile import compile_func
from trampoline.bpf.jit.jit_input import JitFunc
from trampoline.bpf.jit.rules import JitBoot
from trampoline.bpf.standalone import BareMachine

pytestmark = pytest.mark.slow

DRAWN = 200
"""Programs of each kind; many more were run once."""

_CODES = sorted(LOADABLE | REWRITTEN)
_LENGTH = 12


def wild(random):
    """Bytes without any order."""
    return random.randbytes(random.choice((0, 1, 7, 8, 9, 16, 24, 200)))


def likely(random):
    """Instructions in an order that has no sense, with jumps that mostly stay in the program."""
    insns = []
    while len(insns) < _LENGTH:
        code = random.choice(_CODES)
        is_jump = code & 7 in (Cls.JMP, Cls.JMP32) and code & 0xF0 not in (Jmp.CALL, Jmp.EXIT)
        off = (
            random.randrange(-len(insns) - 1, _LENGTH - len(insns)) if is_jump else random.choice((0, 0, 1, 8, -8, 16))
        )
        imm = random.choice((0, 0, 1, 3, 16, 32, 64, 255))
        insn = Insn(code, random.choice((0, 0, 1, random.randrange(11))), random.choice((0, 0, 1, 10)), off, imm)
        if fault(insn, rewritten=True) is None and (fault(insn) is None or random.random() < 0.1):
            insns.append(insn)
    return encode([*insns, Insn(EXIT)])


def mutated(random):
    """A program that means something, of which some bytes are others now."""
    data = bytearray(encode(random_program(random).insns))
    for _ in range(random.choice((1, 1, 1, 2, 5))):
        data[random.randrange(len(data))] = random.choice((0, 1, 0xFF, random.randrange(256)))
    return bytes(data)


KINDS = {"wild": wild, "likely": likely, "mutated": mutated}


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_are_a_program_or_a_bytecode_error(kind):
    random, seen = Random(kind), Counter()
    for _ in range(DRAWN // 4 if kind == "mutated" else DRAWN):  # they are long, and text takes its time
        data = KINDS[kind](random)
        for rewritten in (False, True):
            try:
                insns = decode(data, rewritten=rewritten)
            except BytecodeError as error:
                seen["refused", 0 <= error.slot <= len(data) // 8] += 1
                continue
            seen["read"] += 1
            assert encode(insns) == data
            assert parse(format_program(insns), rewritten=rewritten) == insns
            assert not [insn for insn in insns if fault(insn, rewritten=rewritten) or not format_insn(insn)]
    assert set(seen) == {"read", ("refused", True)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("release", RELEASES)
def test_bytes_are_compiled_or_refused(kind, release):
    random, seen = Random(f"jit {kind}"), Counter()
    for _ in range(DRAWN):
        try:
            func = JitFunc(decode(KINDS[kind](random), rewritten=True), call_base=0xFFFFFFFF81000000)
            image = compile_func(func, 0xFFFFFFFFC0000000, RELEASES[release].jit, JitBoot())
            assert len(image.offsets) == sum(insn.slots for insn in func.insns) + 1
            seen["compiled"] += 1
        except TrampolineError as error:
            seen[type(error).__name__] += 1
    assert seen["compiled"]
    assert len(seen) > 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("release", ["6.1", "7.2"])
def test_bytes_run_or_are_refused(kind, release):
    """Through the rewriting and the JIT, and in the machine, which must be as good as new for the next one."""
    random, seen = Random(f"{kind} {release}"), Counter()
    machine = BareMachine(RELEASES[release], helpers=HELPERS)
    for _ in range(DRAWN):
        try:
            machine.load(decode(KINDS[kind](random)))
            machine.run(bytes(256), max_instructions=2000)
            seen["ran"] += 1
        except TrampolineError as error:
            seen[type(error).__name__] += 1
    assert set(seen) >= ({"BytecodeError"} if kind == "wild" else {"BytecodeError", "ProgramFault", "ran"})
    machine.load(parse("r0 = 7\nexit"))
    assert machine.run()[0] == 7
    machine.close()
