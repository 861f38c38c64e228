"""The one line that names the extra to install, for each extra."""

import subprocess
import sys

import pytest

from trampoline import TrampolineError
from trampoline.extras import MissingExtra, extra

RUN = "import sys; sys.modules[sys.argv[1]] = None; from trampoline.tools.cli import main; sys.exit(main(sys.argv[2:]))"
SCHEDULES = ["explore", "--scenario", "two-attaches", "--schedules", "1"]


@pytest.mark.parametrize(
    ("package", "argv", "purpose", "name"),
    [
        ("matplotlib", ["scale", "--points", "1", "--output", "out"], "scale.svg", "plot"),
        ("textual", ["step", "bpf_fentry_test1", "--fentry", "--screenshot", "out.svg"], "--screenshot", "terminal"),
        ("hypothesis", ["mutants", "--list"], "tramp mutants", "testing"),
        ("hypothesis", [*SCHEDULES, "--examples", "out"], "trampoline.testing", "testing"),
        ("distributed", [*SCHEDULES, "--dask", "tcp://127.0.0.1:9"], "a Dask cluster", "campaigns"),
        ("redis", [*SCHEDULES, "--redis", "redis://127.0.0.1:9/0"], "a Redis server of examples", "campaigns"),
    ],
)
def test_a_missing_package_is_one_line_and_status_2(tmp_path, package, argv, purpose, name):
    result = subprocess.run(
        [sys.executable, "-c", RUN, package, *argv], capture_output=True, text=True, timeout=60, cwd=tmp_path
    )
    message = f"{purpose} needs {package}, which is not installed: pip install tramplab[{name}]"
    assert (result.returncode, result.stdout, result.stderr) == (2, "", f"tramp {argv[0]}: {message}\n")
    assert not list(tmp_path.glob("*.svg"))


def test_the_screen_says_that_lines_need_nothing(monkeypatch):
    from trampoline.tools.debugger.terminal import run

    monkeypatch.delitem(sys.modules, "trampoline.tools.debugger.terminal.app", raising=False)
    monkeypatch.setitem(sys.modules, "textual", None)
    monkeypatch.setattr(run, "has_screen", lambda: True)
    with pytest.raises(MissingExtra, match=r"--plain prints lines.* needs textual.*tramplab\[terminal\]"):
        run.step(lambda: pytest.fail("opened"), run.Stepping())


def test_the_library_for_tests_is_not_imported_without_hypothesis():
    code = "import sys; sys.modules['hypothesis'] = None\ntry:\n import trampoline.testing\n"
    code += "except ImportError as error: print(error)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    message = "trampoline.testing needs hypothesis, which is not installed: pip install tramplab[testing]\n"
    assert (result.stdout, result.stderr) == (message, "")


def test_only_what_others_wrote_is_an_extra():
    assert issubclass(MissingExtra, TrampolineError)
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'trampoline\.nothing'"), extra("plot", "x"):
        import trampoline.nothing  # noqa: F401
    with pytest.raises(ImportError, match="cannot import name 'nothing'"), extra("plot", "x"):
        from trampoline.extras import nothing  # noqa: F401
