"""Patches: what is replaced, everywhere, and that nothing of it stays."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import pytest
from kernel_releases import RELEASES

from trampoline import text_poke, tramp_links
from trampoline.designs import DESIGNS
from trampoline.image import tramp_image
from trampoline.image.generator import TrampFlag
from trampoline.rules import TrampolineRules
from trampoline.tools.mutants import Mutant, MutantError, mutant, replace, replace_item, wrap
from trampoline.tools.mutants.catalogue import AREAS, catalogue
from trampoline.tramp_links import flags_of
from trampoline.update import bpf_trampoline
from trampoline.update.bpf_trampoline import BpfTrampoline

pytestmark = pytest.mark.slow

PACKAGES = ("asm", "emu", "trampoline")
BY_ITSELF = {("emu.host.watchdog", "_thread")}
"""What comes and goes without anybody's patch."""


def state():
    """Everything that modules and classes of the project have, by where it is."""
    found = {}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] not in PACKAGES:
            continue
        for key, value in vars(module).items():
            found[name, key] = value
            if isinstance(value, type) and value.__module__ == name:
                found |= {(name, key, member): held for member, held in vars(value).items()}
    return {where: value for where, value in found.items() if where not in BY_ITSELF}


def different(before):
    after = state()
    return [key for key in before if before[key] is not after.get(key, before)]


def test_a_function_is_replaced_wherever_it_was_imported():
    def nothing(*args):
        return 0

    original = text_poke.bpf_arch_text_poke
    with Mutant("m", "", "", replace("trampoline.text_poke.bpf_arch_text_poke", nothing)).applied():
        assert (
            tramp_image.bpf_arch_text_poke
            is bpf_trampoline.bpf_arch_text_poke
            is text_poke.bpf_arch_text_poke
            is nothing
        )
    assert (
        tramp_image.bpf_arch_text_poke is bpf_trampoline.bpf_arch_text_poke is text_poke.bpf_arch_text_poke is original
    )


def test_methods_properties_and_static_methods_stay_what_they_are():
    before = state()
    patches = [
        replace("trampoline.rules.TrampolineRules.max_slots", lambda rules: 3),
        wrap("trampoline.update.bpf_trampoline.BpfTrampoline._add", lambda old: lambda self, link: old(self, link) + 1),
        replace("emu.kernel.ftrace.direct.Ftrace._check_direct", lambda ops: "seen"),
        replace("emu.kernel.ftrace.direct.Ftrace.register_ftrace_function", lambda self, ops: None),
    ]
    from emu.kernel.ftrace.direct import Ftrace

    with Mutant("m", "", "", patches).applied():
        assert RELEASES["6.12"].trampoline.max_slots == 3
        assert isinstance(vars(TrampolineRules)["max_slots"], property)
        assert isinstance(vars(Ftrace)["_check_direct"], staticmethod)
        assert Ftrace._check_direct(None) == "seen"
        assert "register_ftrace_function" in vars(Ftrace)
    assert "register_ftrace_function" not in vars(Ftrace)
    assert RELEASES["6.12"].trampoline.max_slots == 12
    assert different(before) == []


def test_what_is_remembered_of_code_is_forgotten():
    asked = {"calls_original": False, "uses_func_ip": False, "kept": TrampFlag.TAIL_CALL_CTX}
    right = flags_of(RELEASES["6.12"].trampoline, **asked)
    lost = replace("trampoline.tramp_links.uses_jmp", lambda rules, flags: True)
    with Mutant("m", "", "", lost).applied():
        assert tramp_links.flags_of.cache_info().currsize == 0
        assert flags_of(RELEASES["6.12"].trampoline, **asked) == right & ~TrampFlag.SKIP_FRAME
        wrong = flags_of(RELEASES["6.12"].trampoline, calls_original=True, uses_func_ip=False)
        assert not wrong & TrampFlag.SKIP_FRAME
    assert flags_of(RELEASES["6.12"].trampoline, calls_original=True, uses_func_ip=False) & TrampFlag.SKIP_FRAME


def test_items_objects_and_patches_of_other_kinds():
    seen = []

    @contextmanager
    def manager() -> Iterator[None]:
        seen.append("in")
        yield
        seen.append("out")

    def generator() -> Iterator[None]:
        seen.append("begins")
        yield
        seen.append("ends")

    patches = [
        replace_item("trampoline.designs.DESIGNS", "batched", DESIGNS["per-function"]),
        mock.patch.object(BpfTrampoline, "put_nothing", 1, create=True),
        manager,
        manager(),
        generator,
        lambda: seen.append("just done"),
    ]
    batched = DESIGNS["batched"]
    with Mutant("m", "", "", patches).applied():
        assert DESIGNS["batched"] is DESIGNS["per-function"]
        assert BpfTrampoline.put_nothing == 1
        assert seen == ["in", "in", "begins", "just done"]
    assert DESIGNS["batched"] is batched
    assert not hasattr(BpfTrampoline, "put_nothing")
    assert seen[4:] == ["ends", "out", "out"]


def test_a_patch_is_taken_back_where_the_next_does_not_fit():
    before = state()
    patches = [
        replace("trampoline.text_poke.bpf_arch_text_poke", None),
        replace("trampoline.text_poke.there_is_not", None),
    ]
    with pytest.raises(MutantError, match=r"trampoline\.text_poke has no there_is_not"):
        Mutant("m", "", "", patches).applied().__enter__()
    assert different(before) == []


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("nowhere.at.all", "no such module"),
        ("trampoline.text_poke.BpfTextPokeType.there_is_not.more", "BpfTextPokeType has no there_is_not"),
        ("trampoline", "no such module"),
    ],
)
def test_paths_that_lead_nowhere(path, says):
    with pytest.raises(MutantError, match=says):
        Mutant("m", "", "", replace(path, None)).applied().__enter__()


def test_every_mutant_of_the_catalogue_fits_and_leaves_nothing():
    assert len(catalogue()) >= 34
    assert sum(map(len, AREAS.values())) == len({one.name for one in catalogue()})
    import trampoline.tools.mutants.detectors  # noqa: F401

    before, designs = state(), dict(DESIGNS)
    for one in catalogue():
        assert one.bug
        assert one.mechanism
        with one.applied():
            assert different(before) or designs != DESIGNS, f"{one.name} changes nothing"
        assert designs == DESIGNS
    assert different(before) == []


def test_a_function_as_a_mutant():
    @mutant("mine", bug="B1")
    def mine():
        """It goes wrong.

        And how.
        """
        yield

    assert (mine.name, mine.bug, mine.mechanism) == ("mine", "B1", "It goes wrong.")
