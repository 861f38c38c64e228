"""Mass attachment: what it counts, and what the command prints."""

import json
from pathlib import Path

import pytest

from trampoline.btf import Btf
from trampoline.cli import main
from trampoline.lab import DESIGNS, Tracing
from trampoline.mass import mass_attach

BTF = sorted((Path(__file__).parent.parent / "fixtures" / "btf").glob("*"))


def tramp(capsys, *argv):
    status = main([str(word) for word in argv])
    out, err = capsys.readouterr()
    return status, out, err


@pytest.mark.parametrize("design", [design for design in DESIGNS if not design.startswith("seed")])
def test_costs_are_counted(design):
    told = []
    result = mass_attach("bpf_fentry_test*", design=design, progress=lambda *what: told.append(what))
    count = result.functions
    assert count == 10
    assert result.skipped == {}
    assert (result.attach.text_writes, result.detach.text_writes) == (3 * count, 3 * count)
    assert result.attach.ipis == (3 * count if design == "per-function" else 3)
    # Shared: one for all functions, or one for each number of arguments.
    images = {"generic": 1, "tramplab": 6}.get(design, count)
    assert (result.attach.images, result.detach.images) == (images, -images)
    assert result.attach.memory_bytes == -result.detach.memory_bytes > 0
    assert told == [(what, done, count) for what in ("attach", "detach") for done in range(1, count + 1)]


@pytest.mark.parametrize("path", [path for path in BTF if path.suffix in (".xz", ".gz", ".btf")], ids=lambda p: p.name)
def test_attached_and_left_out_are_all_functions_of_a_btf(path):
    btf = Btf.read(path)
    result = mass_attach("*", flavour="6.12", btf=path)
    with Tracing("6.12", btf=btf) as lab:
        assert result.functions + sum(result.skipped.values()) == len(lab.population.select(["*"]))


@pytest.mark.parametrize("kind", ["fentry", "fexit", "fmod_ret", "fsession"])
def test_every_kind_from_the_command(capsys, kind):
    status, out, err = tramp(capsys, "attach", "bpf_fentry_test*", "--kind", kind, "--flavour", "7.2")
    assert (status, err) == (0, "")
    assert out.startswith("10 functions, ")


def test_the_command_prints_a_table(capsys):
    status, out, err = tramp(capsys, "attach", "bpf_fentry_test*")
    assert (status, err) == (0, "")
    assert out.startswith("10 functions, design batched, kernel 6.12; left out: none")
    assert "+10" in out


def test_the_command_as_json(capsys):
    status, out, _ = tramp(
        capsys,
        "attach",
        "bpf_fentry_test?",
        "--kind",
        "fexit",
        "--design",
        "per-function",
        "--flavour",
        "7.2",
        "--json",
    )
    figures = json.loads(out)
    assert status == 0
    assert (figures["functions"], figures["design"]) == (9, "per-function")
    assert figures["attach"].keys() >= {
        "wall_seconds",
        "grace_periods",
        "text_writes",
        "ipis",
        "images",
        "memory_bytes",
    }


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["nothing_*"], "no function matches"),
        (["bpf_*", "--design", "fast"], "no design"),
        (["bpf_*", "--functions", "no-such-file"], "No such file"),
        (["bpf_*", "--functions", __file__], "not BTF"),
        (["bpf_*", "--kind", "fsession"], "no fsession"),
    ],
)
def test_bad_input(capsys, argv, message):
    status, out, err = tramp(capsys, "attach", *argv)
    assert (status, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1
