"""Mass attachment: what it counts, and what the command prints."""

import json

import pytest

from emu.kernel.rcu import GRACE_PERIOD_NS, RcuFlavour
from paths import FIXTURES
from trampoline.bpf.btf.btf import Btf
from trampoline.bpf.errors import TrampolineError
from trampoline.designs import DESIGNS
from trampoline.kfunc_md.arena import bytes_beside_slab
from trampoline.lab import Lab
from trampoline.tools.cli import main
from trampoline.tools.scale.mass_attach import Conditions, mass_attach
from trampoline.tools.scale.spot_check import Check

pytestmark = pytest.mark.slow

BTF = sorted((FIXTURES / "btf").glob("*"))


def tramp(capsys, *argv):
    status = main([str(word) for word in argv])
    out, err = capsys.readouterr()
    return status, out, err


@pytest.mark.parametrize("design", [name for name, design in DESIGNS.items() if design.links == "any"])
def test_costs_are_counted(design):
    told = []
    result = mass_attach("bpf_fentry_test*", design=design, progress=lambda *what: told.append(what))
    count = result.functions
    assert count == 10
    assert result.skipped == {}
    assert (result.attach.text_writes, result.detach.text_writes) == (3 * count, 3 * count)
    assert result.attach.ipis == (3 * count if design == "per-function" else 3)
    # Shared: one for all functions, or one for each number of arguments.
    images = {"generic": 1, "specialised": 6}.get(design, count)
    assert (result.attach.images, result.detach.images) == (images, -images)
    assert result.attach.memory_bytes == -result.detach.memory_bytes > 0
    assert told == [(what, done, count) for what in ("attach", "detach") for done in range(1, count + 1)]


@pytest.mark.parametrize("path", [path for path in BTF if path.suffix in (".xz", ".gz", ".btf")], ids=lambda p: p.name)
def test_attached_and_left_out_are_all_functions_of_a_btf(path):
    btf = Btf.read(path)
    result = mass_attach("*", flavour="6.12", btf=path)
    with Lab("6.12", btf=btf) as lab:
        assert result.functions + sum(result.skipped.values()) == len(lab.population.select(["*"]))


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("check", [0, 1, 5, 1000])
def test_functions_are_called_and_checked(design, check):
    result = mass_attach("*", flavour="7.2", design=design, check=check)
    assert result.wrong == ()
    # The posted series takes six slots: of one five it takes none.
    few = check == 5 and result.functions == 20
    assert result.checked == {0: 0, 1: result.functions, 5: 6 - few, 1000: 1}[check]


def test_functions_of_a_btf_are_called_and_checked():
    btf = Btf.read(FIXTURES / "btf" / "6.12.btf.xz")
    result = mass_attach("*", design="batched", btf=btf, check=1)
    # The kernel's own routines are not.
    assert 20 < result.checked < result.functions
    assert result.wrong == ()


def test_what_a_function_does_wrong_is_noticed(make_lab):
    lab = make_lab("6.12")
    check = Check(lab)
    prog = lab.prog("fentry_multi", check.program)
    functions = lab.population.select(["bpf_fentry_test1", "bpf_fentry_test2", "tramplab_notrace"])
    check.sample(prog, functions, 1)
    names = {"bpf_fentry_test1", "bpf_fentry_test2"}
    assert check.run(attached=False) == (2, set())
    assert check.run(attached=True) == (2, names)
    link = lab.attach_multi(prog, ["bpf_fentry_test2"])
    assert check.run(attached=True) == (2, {"bpf_fentry_test1"})
    assert check.run(attached=True, without={"bpf_fentry_test1"}) == (1, set())
    assert check.run(attached=False) == (2, {"bpf_fentry_test2"})
    link.detach()
    lab.attach(lab.prog("fmod_ret", "mov eax, 7\nret"), "bpf_fentry_test1")
    assert check.run(attached=False) == (2, {"bpf_fentry_test1"})


def test_wrong_functions_end_the_command_with_status_1(capsys, monkeypatch):
    monkeypatch.setattr(Check, "run", lambda self, **options: (1, {"tcp_v4_rcv"}))
    status, out, _ = tramp(capsys, "attach", "bpf_fentry_test1")
    assert (status, out.splitlines()[-1]) == (1, "1 function called before, attached and after: wrong: tcp_v4_rcv")


def test_virtual_time_is_that_of_grace_periods_and_interrupts(capsys):
    durations = {RcuFlavour.RCU: 1_000, RcuFlavour.RCU_TASKS: 2_000, RcuFlavour.RCU_TASKS_TRACE: 3_000}
    normal = mass_attach("bpf_fentry_test?", design="per-function")
    quick = mass_attach("bpf_fentry_test?", design="per-function", durations=durations, ipi_ns=0)
    # A detached image is freed after two; the first one's counts are none of RCU's.
    assert quick.attach.grace_periods == normal.attach.grace_periods == 8
    assert quick.attach.virtual_seconds == pytest.approx(8 * 2e-6)
    tasks = GRACE_PERIOD_NS[RcuFlavour.RCU_TASKS] / 1e9
    assert normal.attach.virtual_seconds == pytest.approx(8 * tasks + normal.attach.ipis * 5e-6)
    _, out, _ = tramp(
        capsys, "attach", "bpf_fentry_test?", "--design", "per-function", "--gp-ms", "0.001,0.002,.003,0", "--ipi-us",
        "0", "--json",
    )  # fmt: skip
    assert json.loads(out)["attach"]["virtual_seconds"] == quick.attach.virtual_seconds


@pytest.mark.parametrize("metadata", DESIGNS["specialised"].metadata)
def test_memory_of_metadata_is_counted(metadata):
    without = mass_attach("*", flavour="7.2", design="specialised", metadata=metadata)
    with_ = mass_attach("*", flavour="7.2", design="specialised", metadata=metadata, cookies=True)
    assert with_.attach.memory_bytes > without.attach.memory_bytes + 72 * with_.functions - 1
    # A hash table of 32 buckets may outlast its records: it shrinks at the next check.
    kept = with_.attach.memory_bytes + with_.detach.memory_bytes
    assert 0 <= kept <= (160 if metadata == "hash" else 0)


def test_memory_beside_the_slab_is_that_of_one_kernel(make_lab):
    one, other = (make_lab("6.12", design="specialised", metadata="padding") for _ in range(2))
    prog = one.prog("fentry_multi", "xor eax, eax\nret")
    link = one.attach_multi(prog, ["bpf_fentry_test1", "bpf_fentry_test2"], cookies=[1, 2])
    assert (bytes_beside_slab(one.kernel), bytes_beside_slab(other.kernel)) == (2 * 72, 0)
    link.detach()
    assert bytes_beside_slab(one.kernel) == 0


def test_progress_is_told_in_steps():
    told = []
    count = mass_attach("*", progress=lambda *what: told.append(what)).functions
    assert told[: count + 1] == [("attach", done, 28) for done in range(1, count + 1)] + [("detach", 1, 28)]


def test_bad_conditions():
    for bad in ({"check": -1}, {"ipi_ns": -1}, {"durations": {RcuFlavour.RCU: -1}}):
        with pytest.raises(TrampolineError):
            Conditions(**bad)


@pytest.mark.parametrize("kind", ["fentry", "fexit", "fmod_ret", "fsession"])
def test_every_kind_from_the_command(capsys, kind):
    status, out, err = tramp(capsys, "attach", "bpf_fentry_test*", "--kind", kind, "--flavour", "7.2")
    assert (status, err) == (0, "")
    assert out.startswith("10 functions, ")


def test_the_command_prints_a_table(capsys):
    status, out, err = tramp(capsys, "attach", "bpf_fentry_test*")
    assert (status, err) == (0, "")
    assert out.startswith("10 functions, design specialised, kernel 6.12; left out: none")
    assert "+6" in out


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
        (["bpf_*", "--metadata", "hash", "--design", "batched"], "no metadata 'hash'"),
        (["bpf_*", "--gp-ms", "1,2"], "three or four"),
        (["bpf_*", "--gp-ms", "1,2,x"], "'x' is not a duration"),
        (["bpf_*", "--ipi-us", "-1"], "is not a duration"),
        (["bpf_*", "--check", "-1"], "is negative"),
    ],
)
def test_bad_input(capsys, argv, message):
    status, out, err = tramp(capsys, "attach", *argv)
    assert (status, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1
