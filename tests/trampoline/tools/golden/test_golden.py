"""What real kernels made is the judge; these recordings hold every case of nine boots."""

import gzip
import json

import pytest

from paths import FIXTURES
from trampoline.bpf.errors import GoldenError
from trampoline.tools.golden.report import GoldenReport, compare_files
from trampoline.tools.golden.trampoline_case import read_cases
from trampoline.tools.golden.trampoline_images import compare_image, regenerate

pytestmark = pytest.mark.slow

GOLDEN = FIXTURES / "golden"
TOTALS = {"6.1": (330, 2118, 330), "6.12": (615, 3960, 618), "7.2": (954, 6603, 747)}


@pytest.mark.parametrize("release", TOTALS)
def test_every_image_site_and_replay_agrees(release):
    """Those among them that other ftrace users share."""
    report = compare_files([GOLDEN / f"{release}.jsonl.gz"])
    assert report.mismatches == []
    totals = (report.images, report.sites, report.replay)
    assert tuple(kind.identical for kind in totals) == TOTALS[release]
    assert tuple(kind.total for kind in totals) == TOTALS[release]
    assert [kind.skipped for kind in totals] == [0, 0, 0]


def lines(release="6.12", wanted=lambda case: True, count=1):
    with gzip.open(GOLDEN / f"{release}.jsonl.gz", "rt") as file:
        found = (json.loads(line) for line in file)
        return [case for case, _ in zip((c for c in found if wanted(c)), range(count), strict=False)]


def write(path, cases):
    path.write_text("".join(json.dumps(case) + "\n" for case in cases))
    return path


def mismatches(path) -> GoldenReport:
    return compare_files([path])


def test_a_changed_byte_is_found_where_it_is(tmp_path):
    (case,) = lines(wanted=lambda c: c["case"] == "ft1/x")
    image = case["trampolines"][0]
    image["hex"] = image["hex"][:40] + "ff" + image["hex"][42:]
    (difference,) = mismatches(write(tmp_path / "g", [case])).mismatches
    assert (difference.offset, difference.what) == (20, f"image at 0x{image['addr']}")


def test_a_changed_site_is_found(tmp_path):
    (case,) = lines(wanted=lambda c: c["case"] == "ft1/x")
    site = case["targets"][0]["site_after"]
    case["targets"][0]["site_after"] = site[:10] + "00" + site[12:]
    report = mismatches(write(tmp_path / "g", [case]))
    assert [d.what for d in report.mismatches] == ["site of bpf_fentry_test1, after"]
    assert report.sites.identical == report.sites.total - 1


@pytest.mark.parametrize("release", TOTALS)
@pytest.mark.parametrize("name", ["ftr/3-ftrace-then-x", "ftr/6-e-then-kprobe", "ftr/7-kprobe-then-e"])
def test_a_site_with_several_users_is_compared_at_every_moment(tmp_path, release, name):
    """An address that was not recorded as anybody's is one that the site does not reach."""
    (case,) = lines(release, lambda c: c["case"] == name)
    target = case["targets"][0]
    offset = 2 * target["patch_offset"]
    for number in range(1, len(target["steps"])):
        changed = json.loads(json.dumps(case))
        step = changed["targets"][0]["steps"][number]
        step["site"] = step["site"][: offset + 2] + "12345678" + step["site"][offset + 10 :]
        report = mismatches(write(tmp_path / "g", [changed]))
        assert [d.what for d in report.mismatches] == [f"site of bpf_fentry_test1, after {step['after']}"]


def test_the_stub_of_several_users_is_not_one_users_trampoline(tmp_path):
    """A site that had called its first user's trampoline all along is found."""
    (case,) = lines("7.2", lambda c: c["case"] == "ftr/7-kprobe-then-e")
    target = case["targets"][0]
    target["steps"][2]["site"] = target["site_after"] = target["steps"][1]["site"]
    report = mismatches(write(tmp_path / "g", [case]))
    assert [d.what.partition(", ")[2] for d in report.mismatches] == ["after g0_fentry", "after"]


@pytest.mark.parametrize(
    ("field", "value", "what"),
    [
        ("count", 3, "saw count"),
        ("ret", "0x77", "saw ret"),
        ("cookie", "0x5", "saw cookie"),
        ("func_ip", "0x1", "saw func_ip"),
        ("args", ["0x9"] * 12, "saw args"),
    ],
)
def test_a_changed_observation_is_found(tmp_path, field, value, what):
    (case,) = lines(wanted=lambda c: c["case"] == "ft1/x:ic" or c["case"] == "ft1/x:aRnic")
    case["programs"][0]["observed"][field] = value
    report = mismatches(write(tmp_path / "g", [case]))
    assert any(what in d.what for d in report.mismatches)
    assert report.replay.identical == 0


def test_a_changed_order_is_found(tmp_path):
    (case,) = lines(wanted=lambda c: c["case"] == "ft1/e+e")
    case["trampolines"][0]["prog_call_order"].reverse()
    assert "program order" in [d.what for d in mismatches(write(tmp_path / "g", [case])).mismatches]


def test_an_origin_that_was_not_skipped_is_found(tmp_path):
    (case,) = lines(wanted=lambda c: c["case"] == "mrt/m:=1")
    case["programs"][0]["retval"] = 0
    assert any("runs of" in d.what for d in mismatches(write(tmp_path / "g", [case])).mismatches)


def test_recorded_bytes_and_sizes_are_no_input():
    path = GOLDEN / "6.12.jsonl.gz"
    case = next(case for case in read_cases(path) if case.name == "ft1/e+x")
    (image,) = [image for image in case.images if image.kind == "bpf_trampoline"]
    made = regenerate(case, image).image.code
    from dataclasses import replace

    assert regenerate(case, replace(image, code=b"", size=None)).image.code == made
    assert list(compare_image(case, image)) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no case"),
        (b"hello\n", "not JSON"),
        (b"[1]\n", "not a recorded case"),
        (b"{}\n", "'id' is missing"),
        (b"\x1f\x8bgarbage", "golden"),
        (gzip.compress(b'{"id": "x"}\n' * 50, mtime=0)[:-20], "golden"),
    ],
    ids=["empty", "text", "list", "empty object", "no gzip", "cut gzip"],
)
def test_a_damaged_or_foreign_file(tmp_path, content, message):
    path = tmp_path / "golden"
    path.write_bytes(content)
    with pytest.raises(GoldenError, match=message):
        compare_files([path])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.update(kernel="5.4.0"), "no release"),
        (lambda c: c.update(targets=[{}]), "missing"),
        (lambda c: c["targets"][0].update(addr="zz"), "hexadecimal"),
        (lambda c: c["targets"][0].update(addr=5), "'addr'"),
        (lambda c: c["programs"][0].update(sleepable=1), "'sleepable'"),
        (lambda c: c["programs"][0].update(jited="0"), "hexadecimal"),
        (lambda c: c.pop("boot"), "'boot'"),
        (lambda c: c["symbols"].update({"zz": "x"}), "symbol"),
        (lambda c: c["programs"][0].update(attach="fentyr"), "fentyr"),
        (lambda c: c["programs"][0].update(multi_cookies="12"), "'multi_cookies'"),
        (lambda c: c["programs"][0].update(multi_btf_ids=7), "'multi_btf_ids'"),
        (lambda c: c["trampolines"][0].update(size="large"), "'size'"),
    ],
)
def test_a_damaged_case_names_line_and_field(tmp_path, change, message):
    good, bad = lines(count=2)
    change(bad)
    with pytest.raises(GoldenError, match=message) as caught:
        compare_files([write(tmp_path / "golden", [good, bad])])
    assert "golden:2" in str(caught.value)


def test_a_missing_file(tmp_path):
    with pytest.raises(GoldenError, match="No such file"):
        compare_files([tmp_path / "none"])


def test_a_static_without_endbr64_has_its_site_at_0(tmp_path):
    """No recorded target is one, but compilers make them: the same case without endbr64, its addresses moved by 4."""
    (case,) = lines(wanted=lambda c: c["case"] == "ft1/x")
    (target,) = case["targets"]
    target |= {"endbr64": False, "patch_offset": 0}
    image = case["trampolines"][0]
    code = bytes.fromhex(image["hex"])
    call = code.index(b"\xe8", code.index(bytes.fromhex("488b7df0")))
    reach = int.from_bytes(code[call + 1 : call + 5], "little", signed=True) - 4
    image["hex"] = (code[: call + 1] + reach.to_bytes(4, "little", signed=True) + code[call + 5 :]).hex()

    def site(text):
        raw = bytes.fromhex(text)[4:9]
        if raw[0] == 0xE8:
            raw = b"\xe8" + (int.from_bytes(raw[1:], "little", signed=True) + 4).to_bytes(4, "little", signed=True)
        return raw.hex()

    for name in ("site_before", "site_after", "site_detached"):
        target[name] = site(target[name])
    for step in target["steps"]:
        step["site"] = site(step["site"])
    report = mismatches(write(tmp_path / "g", [case]))
    assert report.mismatches == []
    assert report.images.identical == 1


def test_a_thunk_that_we_do_not_know_returns(tmp_path):
    (case,) = lines(wanted=lambda c: c["case"] == "ft1/x" and c["run"] == "612-kaslr-skylake", release="6.12")
    case["boot"]["return_thunk_sym"] = "srso_alias_return_thunk"
    case["symbols"] = {
        address: name.replace("its_return_thunk", "srso_alias_return_thunk")
        for address, name in case["symbols"].items()
    }
    assert mismatches(write(tmp_path / "g", [case])).mismatches == []
