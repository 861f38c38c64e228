"""Recorded programs through all stations: verified, rewritten, compiled to the kernels' bytes (a selection)."""

from dataclasses import replace
from functools import cache

import pytest
from kernel_releases import RECORDED, RELEASES

from paths import FIXTURES
from trampoline.bpf.errors import GoldenError
from trampoline.tools.golden.recorded_programs import ProgramKernel, compare_program, compiled_programs
from trampoline.tools.golden.report import compare_files
from trampoline.tools.golden.trampoline_case import read_cases
from trampoline.tools.golden.verdicts import kernel_btf

FIXTURES = FIXTURES
BTF = FIXTURES / "btf"


@cache
def cases(release):
    return list(read_cases(FIXTURES / "programs" / f"{release}.jsonl.gz"))


@pytest.mark.parametrize("release", RECORDED)
def test_every_program_becomes_the_kernels_bytes(release):
    kernel = ProgramKernel(RELEASES[release], kernel_btf(BTF, release))
    compared = 0
    for case in cases(release):
        for program in compiled_programs(case):
            assert not list(compare_program(case, program, kernel)), f"{case.id}: {program.name}"
            compared += 1
    assert compared > 100


def test_what_differs_is_named_with_its_place():
    kernel = ProgramKernel(RELEASES["7.2"], kernel_btf(BTF, "7.2"))
    case = cases("7.2")[0]
    program = compiled_programs(case)[0]
    (difference,) = compare_program(case, replace(program, jited=program.jited[:-1] + b"\x90"), kernel)
    assert (difference.id, difference.offset) == (case.id, len(program.jited) - 1)
    assert difference.what.startswith("image of program")
    (difference,) = compare_program(case, replace(program, insns=b"\xff" * 8), kernel)
    assert "BytecodeError" in difference.got


def test_a_folder_that_is_named_must_have_the_btf(tmp_path):
    with pytest.raises(GoldenError, match=r"has no BTF of kernel 6\.1"):
        compare_files([FIXTURES / "programs" / "6.1.jsonl.gz"], tmp_path)
