"""Damage of any kind is a typed error: nothing else is raised, and it does not take long."""

import random
import struct
from contextlib import suppress
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from btf_writer import Writer
from emu.elf.reader import read_elf
from paths import SELFTEST_FOLDER
from trampoline.bpf.btf.btf import Btf
from trampoline.bpf.btf.ext import read_btf_ext
from trampoline.bpf.errors import BtfError, ObjectError
from trampoline.bpf.isa import decode, encode
from trampoline.bpf.objects.bpf_object import BpfObject

OBJECTS = SELFTEST_FOLDER
SOURCES = {path.stem: path.read_bytes() for path in sorted(OBJECTS.glob("*.o"))}
KSYMS = {"schedule": 1, "bpf_modify_return_test": 2} | {f"bpf_fentry_test{n}": n for n in range(11)}
KCONFIG = {"LINUX_KERNEL_VERSION": 1}
WORDS = (0, 1, 2, 8, 0xFF, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)


def some_kernel():
    """A kernel that has a little of what the objects ask for."""
    writer = Writer()
    integer = writer.int("int", 4, 1)
    writer.struct("task_struct", 64, ("pid", integer, 64), ("comm", integer, 128))
    for name in ("bpf_rcu_read_lock", "bpf_rcu_read_unlock"):
        writer.func(name, 0)
    return writer.bytes()


RAW_KERNEL = some_kernel()
KERNEL = Btf(RAW_KERNEL)


def use(raw):
    """Read and resolve an object, whatever it is. What comes of it can be written as bytes again."""
    with suppress(ObjectError):
        found = BpfObject.open(raw, "fuzz.o")
        names = [entry.name for entry in found.entries]
        programs = found.resolve(KERNEL, names=names, kconfig=KCONFIG, ksyms=KSYMS, function_id=lambda name: 1)
        for program in programs:
            assert decode(encode(program.insns)) == program.insns
            assert all(0 <= line.slot < len(program.insns) * 2 for line in program.lines)


@cache
def sections(name):
    """(offset, size) of an object's sections and headers by name."""
    raw = SOURCES[name]
    (headers,) = struct.unpack_from("<Q", raw, 40)
    places = {"headers": (headers, 64 * len(read_elf(raw).sections)), "header": (0, 64)}
    for section in read_elf(raw).sections:
        places.setdefault(section.name, struct.unpack_from("<QQ", raw, headers + 64 * section.index + 24))
    return places


def damaged(raw, where, randoms):
    out = bytearray(raw)
    for _ in range(randoms.choice((1, 1, 2, 4, 16))):
        start, size = randoms.choice(where)
        at = start + randoms.randrange(max(size, 1))
        if randoms.random() < 0.5:
            out[at] = randoms.randrange(256)
        elif (at & ~3) + 4 <= len(out):
            word = randoms.choice(WORDS) if randoms.random() < 0.7 else randoms.randrange(1 << 32)
            struct.pack_into("<I", out, at & ~3, word)
    return bytes(out)


PARTS = {
    "anywhere": lambda name: True,
    "types": lambda name: name.startswith(".BTF"),
    "headers": lambda name: name in ("headers", "header", ".symtab", ".strtab"),
    "relocations": lambda name: name.startswith(".rel"),
    "code": lambda name: "/" in name or name == ".text",
}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("seed", range(3))
def test_damaged_objects(part, seed):
    randoms = random.Random(f"{part} {seed}")
    names = list(SOURCES)
    for _ in range(100):
        chosen = randoms.choice(names)
        places = [place for name, place in sections(chosen).items() if PARTS[part](name) and place[1]]
        if places:
            use(damaged(SOURCES[chosen], places, randoms))


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=300), st.sampled_from([0, 4, 16, 64]), st.sampled_from(sorted(SOURCES)))
def test_random_bytes(tail, kept, name):
    use(SOURCES[name][:kept] + tail)


@settings(max_examples=40, deadline=None)
@given(st.data(), st.sampled_from(sorted(SOURCES)))
def test_truncated_objects(data, name):
    raw = SOURCES[name]
    length = data.draw(st.integers(0, len(raw) - 1))
    with pytest.raises(ObjectError):
        BpfObject.open(raw[:length], "cut.o")


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200), st.integers(0, 64), st.integers(0, 64), st.integers(0, 64))
def test_random_btf_ext(body, funcs, lines, core):
    raw = struct.pack("<HBBI6I", 0xEB9F, 1, 0, 32, 0, funcs, funcs, lines, funcs + lines, core) + body
    with suppress(ObjectError):
        read_btf_ext(raw, KERNEL)


def test_a_kernel_whose_types_are_damaged():
    randoms = random.Random(5)
    parts = BpfObject.open(SOURCES["linked_parts"])
    for _ in range(150):
        out = bytearray(RAW_KERNEL)
        for _ in range(randoms.choice((1, 3))):
            out[randoms.randrange(24, len(out))] = randoms.randrange(256)
        with suppress(BtfError, ObjectError):
            kernel = Btf(bytes(out))
            parts.resolve(kernel, names=["links", "core"], kconfig=KCONFIG, ksyms=KSYMS)
