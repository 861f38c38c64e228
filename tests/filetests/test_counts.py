"""The bench's rows of every design, release and configuration: a line each, with its count, its unbalanced returns, and
a digest of all code that it executed.

``pytest --filetests-update tests/filetests`` writes them anew. Which code differs is what ``tramp count`` says on a
baseline that was made before the change (docs/counts-in-ci.md).
"""

from hashlib import sha256

import pytest
from kernel_releases import RELEASES

from emu.kernel.config import CONFIGS
from paths import ROOT
from trampoline.designs import DESIGNS
from trampoline.image.generator import _Template
from trampoline.tools.icount.bench_paths import Selection

pytestmark = pytest.mark.slow

FOLDER = ROOT / "tests" / "filetests" / "counts"


def line_of(name, path):
    """One path: what it is, and whatever it executes, phase by phase and piece by piece."""
    code = [(phase, [piece.digest for piece in row.pieces]) for phase, row in path.phases.items()]
    digest = sha256(repr(code).encode()).hexdigest()[:12]
    return f"{name} {path.instructions} unbalanced={path.unbalanced_returns} {digest}"


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("flavour", RELEASES)
def test_every_path(flavour, config, filetests_update):
    # What a second program adds does not depend on how a kernel preempts.
    programs = (1, 2) if config == "voluntary" else (1,)
    paths = Selection([flavour], [config], list(DESIGNS), programs=programs).paths()
    if config == "none":
        # With every way to look metadata up.
        paths |= Selection([flavour], [config], ["specialised"], full=True).paths()
    found = sorted(line_of(name, path) for name, path in paths.items())
    file = FOLDER / f"{flavour}-{config}.txt"
    if filetests_update:
        file.write_text("\n".join(found) + "\n")
    assert found == file.read_text().splitlines(), "if that is meant: pytest --filetests-update tests/filetests"


def test_an_instruction_more_in_a_template_changes_the_lines_that_execute_it(monkeypatch):
    known = (FOLDER / "6.12-voluntary.txt").read_text().splitlines()
    designs, real = ["batched", "specialised"], _Template._call_original
    rows = [line for line in known if line.split("/")[2] in designs and "2-programs" not in line]

    def changed(*added):
        def call_original(self):
            yield from real(self)
            yield from added

        monkeypatch.setattr(_Template, "_call_original", call_original)
        found = Selection(["6.12"], ["voluntary"], designs).paths()
        return set(rows) - {line_of(name, path) for name, path in found.items()}

    assert changed() == set()
    longer = changed("mov rcx, rcx")
    assert {line.split()[0].removeprefix("6.12/voluntary/") for line in longer} == {
        "batched/fexit/1-arg", "batched/fexit-multi/1-arg",
    }  # fmt: skip
