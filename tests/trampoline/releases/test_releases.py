"""Kernel releases as values: made ones run without another edit, and a file is all that a new one takes."""

import sys
from dataclasses import replace
from errno import E2BIG

import pytest
from kernel_releases import RELEASES

import trampoline.releases as package
from emu.kernel.errors import KernelError
from emu.kernel.text.entry import EntryLayout
from trampoline.bpf.errors import TrampolineError
from trampoline.bpf.function_lists import names
from trampoline.bpf.isa.parse import parse
from trampoline.bpf.isa.rules import MayGoto
from trampoline.bpf.program import BpfProgram, MapSpec
from trampoline.bpf.uapi import ATTACH_WORDS, MapType, ProgType
from trampoline.lab.lab import Lab
from trampoline.releases import recorded_releases, release, release_names, releases
from trampoline.tools import cli

RETURNS_0 = "xor eax, eax\nret"
COUNTS = """
    *(u32 *)(r10 -4) = 0
    r2 = r10
    r2 += -4
    r1 = map[fd:0] ll
    call 1
    if r0 == 0 goto out
    r1 = 1
    lock *(u64 *)(r0 +0) += r1
out:
    r0 = 0
    exit
"""
CHUNK = 64
"""Bytes that every image has at least (BPF_PROG_CHUNK_SIZE)."""


def kinds_of(found):
    """The kinds of links that a release has on a function."""
    kinds = ["fentry", "fexit", "fmod_ret", *(["fsession"] if found.fsession else [])]
    return kinds + ([f"{kind}_multi" for kind in kinds if kind != "fmod_ret"] if found.verifier.target.multi else [])


def everything_on(found):
    """Boots a release, loads, verifies, compiles and attaches a program of each kind, and calls what they are on.

    Gives by kind the value, the instructions of each function, and where programs and trampolines are with their first
    bytes.
    """
    seen = []
    with Lab(found) as lab:
        for kind in kinds_of(found):
            name = "bpf_fentry_test1"
            counts = MapSpec("counts", MapType.ARRAY, 4, 8, 1)
            real = BpfProgram(
                "counter", parse(COUNTS), ProgType.TRACING, ATTACH_WORDS[kind], maps=(counts,), target=name
            )
            progs = [lab.prog(kind, RETURNS_0)]
            is_real = kind != "fmod_ret" or name in names("fmod_ret", found.version)
            if is_real:
                progs.append(lab.load(real))
            if kind.endswith("_multi"):
                links = [lab.attach_multi(prog, [name, "bpf_fentry_test2"]) for prog in progs]
            else:
                links = [lab.attach(prog, name) for prog in progs]
            called = lab.call(name, 41)
            if is_real:
                assert lab.maps["counts"].read_value(bytes(4)) != bytes(8), f"{kind} programs run"
            code = {image: lab.kernel.machine.read(image, CHUNK) for image in lab.kernel.execmem.images}
            seen.append((kind, called.value, called.counts.by_function, code))
            for link in links:
                link.detach()
            for prog in progs:
                lab.unload(prog)
    return seen


@pytest.mark.parametrize("name", RELEASES)
def test_a_made_release_runs_as_the_one_that_it_was_made_of(name):
    made = replace(RELEASES[name], name="test")
    assert everything_on(made) == everything_on(RELEASES[name])


def test_values_of_a_made_release_count():
    six = RELEASES["6.12"]
    made = replace(six, name="test", trampoline=replace(six.trampoline, max_links=2), tag_hash="md5")
    with Lab(made) as lab:
        for _ in range(2):
            lab.attach(lab.prog("fentry", RETURNS_0), "bpf_fentry_test1")
        with pytest.raises(KernelError, match="this kernel takes 2") as refused:
            lab.attach(lab.prog("fentry", RETURNS_0), "bpf_fentry_test1")
        assert refused.value.errno == E2BIG


def test_facts_of_a_release_reach_every_station():
    six = RELEASES["6.12"]
    made = replace(
        six,
        entry=EntryLayout(endbr=False),
        sign_extended_imm=False,
        sls=False,
        fsession=True,
        union_args=True,
        maps=RELEASES["7.2"].maps,
        isa=replace(six.isa, ordered=True, may_goto=MayGoto.TIMED),
    )
    assert (made.jit.endbr, made.trampoline.entry.endbr) == (False, False)
    assert made.jit.sign_extended_imm is made.trampoline.sign_extended_imm is False
    assert made.jit.sls is made.trampoline.sls is False
    assert made.trampoline.fsession is made.verifier.target.session is made.verifier.helpers.fsession is True
    assert made.trampoline.union_args is made.verifier.target.union_args is True
    assert (made.jit.max_entries_offset, made.jit.ptrs_offset, made.jit.bpf_func_offset) == (0x4C, 0x130, 0x48)
    assert made.rewrite.array_value == 0x130
    assert made.rewrite.may_goto is MayGoto.TIMED
    assert made.verifier.engine.store_release
    assert made.verifier.engine.may_goto_stack == 16
    assert (six.jit.endbr, six.trampoline.fsession) == (True, False)


def test_versions_decide_what_lists_hold():
    made = replace(RELEASES["6.12"], name="test", version=RELEASES["7.2"].version)
    assert "___migrate_enable" in made.btf_id_deny
    assert "___migrate_enable" not in RELEASES["6.12"].btf_id_deny


def test_names_and_versions_go_together():
    assert release_names() == tuple(found.name for found in releases())
    assert [str(found.version.series) for found in releases()] == list(release_names())
    assert list(releases()) == sorted(releases(), key=lambda found: found.version)
    assert {found.name for found in releases()} - {found.name for found in recorded_releases()} == {"6.18"}


@pytest.mark.parametrize("name", ["5.4", "", "6.120", "v6_12", "kernel_release"])
def test_an_unknown_release_is_refused_with_those_that_exist(name):
    with pytest.raises(TrampolineError, match=r"no kernel release .*there are 6\.1, 6\.12, .*7\.2"):
        release(name)


@pytest.fixture
def added(tmp_path, monkeypatch):
    """A file of a release, 6.13, in the package."""
    text = (
        "from dataclasses import replace\n"
        "from trampoline.bpf.kernel_version import KernelVersion\n"
        "from trampoline.releases.v6_12 import RELEASE as V6_12\n"
        'RELEASE = replace(V6_12, name="6.13", version=KernelVersion(6, 13), recorded=False)\n'
    )
    (tmp_path / "v6_13.py").write_text(text)
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
    yield
    sys.modules.pop("trampoline.releases.v6_13", None)
    package._read.cache_clear()


@pytest.mark.usefixtures("added")
def test_a_file_is_all_that_a_release_takes(capsys):
    known = release_names()
    assert known.index("6.12") + 1 == known.index("6.13")
    assert release("6.13").version > release("6.12").version
    assert cli.main(["show", "bpf_fentry_test1", "--flavour", "6.13"]) == 0
    assert "kernel 6.13" in capsys.readouterr().out
    assert cli.main(["show", "--help"]) == 0
    assert "6.13" in " ".join(capsys.readouterr().out.split())
