"""Objects that have one function's code, and others."""

from contextlib import suppress
from random import Random

import pytest

from bpf_elf import an_object
from trampoline.bpf.errors import ObjectError
from trampoline.bpf.standalone.elf import code_of


def test_the_code_is_the_content_of_the_only_executable_section():
    assert code_of(an_object(b"whatever")) == b"whatever"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not an ELF file"),
        (b"\x7fELF\x01\x01", "truncated file"),
        (b"\x7fELF\x02\x01", "damaged ELF header"),
        (an_object(b"code", cut=70), "damaged section headers"),
        (an_object(b"code", offset=1000), "truncated"),
        (an_object(b"code", machine=62), "an object for machine 62, BPF is 247"),
        (an_object(b"code", sections=0), "0 sections of code, not one"),
        (an_object(b""), "0 sections of code"),
        (an_object(b"code", sections=2), "2 sections of code"),
        (an_object(b"code", relocations=16), "the code has relocations"),
    ],
)
def test_other_objects_are_refused(content, message):
    with pytest.raises(ObjectError, match=message):
        code_of(content)


def test_damaged_objects_are_an_answer_or_an_error():
    random, good = Random(1), an_object(b"\x95" + bytes(7))
    for _ in range(3000):
        data = bytearray(good)
        for _ in range(random.randrange(1, 6)):
            data[random.randrange(len(data))] = random.choice((0, 1, 0x7F, 0xFF, random.randrange(256)))
        with suppress(ObjectError):
            assert len(code_of(bytes(data))) <= len(data)
