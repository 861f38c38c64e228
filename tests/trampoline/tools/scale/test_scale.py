"""Cost against the number of functions: which points are measured, and the files that the command writes."""

import json
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from trampoline.bpf.errors import TrampolineError
from trampoline.designs import DESIGNS
from trampoline.tools.cli import main
from trampoline.tools.scale import scale as scale_module
from trampoline.tools.scale.mass_attach import Cost, MassAttach
from trampoline.tools.scale.plot import svg
from trampoline.tools.scale.scale import LeftOut, Scale, scale

pytestmark = pytest.mark.slow


def tramp(capsys, *argv):
    status = main([str(word) for word in argv])
    out, err = capsys.readouterr()
    return status, out, err


@pytest.fixture(scope="module")
def measured():
    return scale(list(DESIGNS), [5, 10, None], check=2)


def shown(result):
    return [(point.design, point.functions) for point in result.points]


@pytest.mark.parametrize("design", [name for name, design in DESIGNS.items() if design.links == "any"])
def test_points_of_each_design(measured, design):
    points = [point for point in measured.points if point.design == design]
    assert [point.functions for point in points] == [5, 10, 27]
    assert [point.checked for point in points] == [3, 5, 14]
    assert all(point.attach.text_writes == 3 * point.functions for point in points)
    assert all(not point.skipped for point in points)
    assert not measured.wrong
    assert measured.left_out == ()


def test_every_design_has_points(measured):
    assert list(dict.fromkeys(point.design for point in measured.points)) == list(DESIGNS)


def test_points_beyond_all_are_all():
    assert shown(scale(["batched"], [1000, 100, None, 10])) == [("batched", 10), ("batched", 27)]
    assert shown(scale(["batched"], [3, 3])) == [("batched", 3)]


def test_functions_are_spread_over_all(monkeypatch):
    chosen = []
    real = scale_module.attach_and_detach

    def attach_and_detach(lab, functions, *rest):
        chosen.append([function.name for function in functions])
        return real(lab, functions, *rest)

    monkeypatch.setattr(scale_module, "attach_and_detach", attach_and_detach)
    scale(["batched"], [3, None])
    few, every = chosen
    assert few == [every[0], every[9], every[18]]


def test_larger_points_are_left_out_after_one_that_took_too_long():
    result = scale(["per-function", "batched"], [2, 4, None], seconds_per_point=0)
    assert shown(result) == [("per-function", 2), ("batched", 2)]
    assert [(left_out.design, left_out.functions) for left_out in result.left_out] == [
        ("per-function", 4), ("per-function", 27), ("batched", 4), ("batched", 27),
    ]  # fmt: skip
    assert result.left_out[0].why.startswith("2 functions took")


def test_a_design_that_takes_no_function(monkeypatch):
    monkeypatch.setattr(scale_module, "is_attachable", lambda *what: False)
    result = scale(["batched"])
    assert (result.points, result.left_out) == ((), (LeftOut("batched", 0, "it takes none of the functions"),))


@pytest.mark.parametrize(
    ("arguments", "conditions"),
    [(([],), {}), ((["batched"], []), {}), ((["batched"], [0]), {}), ((["batched", "fast"],), {}),
     ((["batched"],), {"flavour": "5.4"}), ((["batched"],), {"check": -1})],
)  # fmt: skip
def test_bad_arguments(arguments, conditions):
    with pytest.raises(TrampolineError):
        scale(*arguments, **conditions)


def cost(seconds, count):
    return Cost(seconds, 2 * seconds, 3 * count, 3, count, count, 965 * count)


@pytest.fixture
def drawn():
    points = [
        MassAttach(design, "6.12", count, {}, 1, (), cost(count / 1e3, count), replace(cost(0.0, count), ipis=0))
        for design in ("batched", "specialised")
        for count in (10, 100, 47470)
    ]
    return Scale("6.12", tuple(points), ())


def test_the_same_points_give_the_same_picture(drawn):
    picture = svg(drawn)
    assert picture == svg(drawn)
    assert b"dc:date" not in picture
    root = ET.fromstring(picture)
    assert root.tag.endswith("svg")
    text = " ".join(element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}text"))
    for label in ("wall time (s)", "memory (bytes per function)", "batched, attach", "specialised, detach"):
        assert label in text


def test_nothing_measured_is_a_picture_too():
    assert svg(Scale("6.12", (), (LeftOut("batched", 0, "it takes none of the functions"),)))


def test_the_command_writes_what_it_prints(capsys, tmp_path):
    where = tmp_path / "some" / "where"
    options = ("--designs", "specialised,batched,batched", "--points", "10,all", "--output", where, "--check", 5)
    status, out, err = tramp(capsys, "scale", *options)
    assert (status, err) == (0, "")
    assert (where / "scale.txt").read_text() == out
    lines = [line.split() for line in out.splitlines()]
    assert [line[:2] for line in lines if line and line[0] in DESIGNS] == [
        ["specialised", "10"], ["specialised", "27"], ["batched", "10"], ["batched", "27"],
    ]  # fmt: skip
    assert out.splitlines()[-1] == "16 functions called before, attached and after: all right"
    parsed = json.loads((where / "scale.json").read_text())
    first = parsed["points"][0]
    assert (first["design"], first["functions"]) == ("specialised", 10)
    assert first["attach"].keys() >= {"wall_seconds", "virtual_seconds", "grace_periods", "memory_bytes"}
    assert parsed["left_out"] == []
    assert (where / "scale.svg").read_bytes().startswith(b"<?xml")


def test_the_command_says_what_is_left_out(capsys, tmp_path):
    _, out, _ = tramp(
        capsys, "scale", "--designs", "batched", "--points", "2,all", "--seconds-per-point", "0", "--output", tmp_path
    )
    assert "batched                 27 left out: 2 functions took 0 s" in out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--functions", "no-such-file"], "No such file"),
        (["--functions", __file__], "not BTF"),
        (["--designs", "batched,fast"], "no design 'fast'"),
        (["--points", "10,x"], "'x' is neither"),
        (["--points", "0"], "'0' is neither"),
        (["--points", ""], "'' is neither"),
        (["--seconds-per-point", "soon"], "'soon' is not a number"),
        (["--seconds-per-point", "nan"], "'nan' is not a number"),
        (["--gp-ms", "1"], "three or four"),
        (["--output", __file__], "File exists"),
    ],
)
def test_bad_input(capsys, tmp_path, monkeypatch, argv, message):
    monkeypatch.chdir(tmp_path)
    status, out, err = tramp(capsys, "scale", *argv)
    assert (status, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1
