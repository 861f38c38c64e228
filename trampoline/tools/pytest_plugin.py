"""The pytest plugin: fixtures ``tracing``, ``kernel`` and ``icount``, and baselines of counts (docs/counts-in-ci.md).

Every run of pytest loads it if tramplab is installed: it imports only pytest until a test uses a fixture.
"""

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from emu.kernel.kernel import Kernel
    from trampoline.lab import Lab
    from trampoline.tools.icount.fixture import Icount
    from trampoline.tools.icount.ledger import CheckLedger

_SUFFIX = ".icount"
_OUTPUT = "tramplab_counts"
_USUAL = {"flavour": "6.12", "config": "voluntary", "design": "per-function"}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add options of the command line and the configuration file."""
    group = parser.getgroup("tramplab", "tramplab: counts of instructions")
    group.addoption(
        "--icount-update", action="store_true", help="rewrite the baselines of the tests that run; print the changes"
    )
    for name, usual in _USUAL.items():
        parser.addini(f"tracing_{name}", f"{name} of the fixture tracing (default: {usual})", default=usual)
    parser.addini("icount_soft", "icount.check: a greater difference is a warning, 3 or 2%% (default: 0)", default="0")
    parser.addini("icount_hard", "icount.check: a greater difference is a failure, 3 or 2%% (default: 0)", default="0")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and the state of this run."""
    config.addinivalue_line(
        "markers",
        "tracing(flavour, config=, design=, metadata=, ...): the kernel of the fixtures tracing and kernel; arguments"
        " of trampoline.lab.Lab",
    )
    config.pluginmanager.register(_Run(config), "tramplab-counts")


@pytest.fixture
def tracing(request: pytest.FixtureRequest) -> "Iterator[Lab]":
    """A laboratory whose kernel is set by the marker ``tracing``, an indirect parameter (a flavour, or a dictionary of
    options), or the configuration file.
    """
    from trampoline.lab import Lab

    options: dict[str, Any] = {name: request.config.getini(f"tracing_{name}") for name in _USUAL}
    for marker in reversed(list(request.node.iter_markers("tracing"))):
        if len(marker.args) > len(_USUAL):
            raise pytest.UsageError(f"the marker tracing takes {', '.join(_USUAL)}, not {len(marker.args)} arguments")
        options |= dict(zip(_USUAL, marker.args, strict=False)) | marker.kwargs
    param = getattr(request, "param", None)
    if isinstance(param, Mapping):
        options |= param
    elif param is not None:
        options["flavour"] = param
    with Lab(options.pop("flavour"), options.pop("config"), **options) as lab:
        yield lab


@pytest.fixture
def kernel(tracing: "Lab") -> "Kernel":
    """The synthetic kernel of the fixture ``tracing``."""
    return tracing.kernel


@pytest.fixture
def icount(request: pytest.FixtureRequest) -> "Icount":
    """Compares counts with the baseline next to the test module: ``icount.check(name, call)``."""
    from trampoline.tools.icount.fixture import Icount

    config = request.config
    run: _Run = config.pluginmanager.get_plugin("tramplab-counts")  # type: ignore[assignment]

    def lab() -> object:
        return request.getfixturevalue("tracing") if "tracing" in request.fixturenames else None

    def fail(message: str) -> None:
        pytest.fail(message, pytrace=False)

    return Icount(
        run.ledger(),
        run.module_of(request.node),
        request.node.nodeid,
        (config.getini("icount_soft"), config.getini("icount_hard")),
        update=config.getoption("--icount-update"),
        tracing=lab,
        fail=fail,
    )


class _Run:
    """State of one run of pytest, or of one worker: tests, results, counts."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._ledger: CheckLedger | None = None
        self._tests: defaultdict[str, set[str]] = defaultdict(set)
        """Tests of each module that has a baseline, or may get one."""
        self._partial: set[str] = set()
        """Modules of which only some tests were selected."""
        self._passed: defaultdict[str, int] = defaultdict(int)
        self._updates: bool = config.getoption("--icount-update")
        self._is_complete = True
        """False if a worker was lost."""
        self._said: list[str] = []

    def ledger(self) -> "CheckLedger":
        """Counts of this run."""
        if self._ledger is None:
            from trampoline.tools.icount.ledger import CheckLedger

            self._ledger = CheckLedger(self._config.invocation_params.dir)
        return self._ledger

    def module_of(self, item: pytest.Item) -> str:
        """Name of a test's module in messages."""
        return os.path.relpath(item.path, self._config.invocation_params.dir)

    # Selected and completed tests -----------------------------------------------------------------------------------

    def pytest_deselected(self, items: Iterable[pytest.Item]) -> None:
        """Note modules with deselected tests."""
        self._partial.update(self.module_of(item) for item in items)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Note the tests that will run."""
        modules: dict[str, bool] = {}
        for item in session.items:
            module = self.module_of(item)
            if module not in modules:
                modules[module] = os.path.exists(os.path.splitext(item.path)[0] + _SUFFIX)
            if modules[module] or "icount" in getattr(item, "fixturenames", ()):
                self._tests[module].add(item.nodeid)
        if not self._tests:
            return
        for item in session.items:
            module = self.module_of(item)
            if module in self._tests:
                self._tests[module].add(item.nodeid)
        directory = self._config.invocation_params.dir
        named = [directory / arg.split("::")[0] for arg in self._config.args if "::" in arg]
        self._partial.update(os.path.relpath(path, directory) for path in named)
        if self._config.getoption("lf", False) or not all(path.exists() for path in named):
            self._partial.update(self._tests)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count passed phases: a test passes if setup, call and teardown do."""
        if report.passed:
            self._passed[report.nodeid] += 1

    def _whole(self) -> dict[str, bool]:
        return {
            module: self._is_complete
            and module not in self._partial
            and all(self._passed.get(test, 0) >= 3 for test in tests)
            for module, tests in self._tests.items()
        }

    # Workers and the controller -------------------------------------------------------------------------------------

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Merge the results of a worker."""
        found = getattr(node, "workeroutput", {}).get(_OUTPUT)
        if found is None:  # the worker was lost with its counts
            self._is_complete = False
            return
        for module, tests in found["tests"].items():
            self._tests[module].update(tests)
        self._partial.update(found["partial"])
        if found["ledger"] is not None:
            self.ledger().take_in(found["ledger"])

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Rewrite the baselines, or find stale names; a worker sends its results to the controller instead."""
        output = getattr(self._config, "workeroutput", None)
        if output is not None:
            output[_OUTPUT] = {
                "tests": {module: sorted(tests) for module, tests in self._tests.items()},
                "partial": sorted(self._partial),
                "ledger": None if self._ledger is None else self._ledger.packed(whole=self._updates),
            }
            return
        if (not self._tests and self._ledger is None) or self._config.getoption("collectonly", False):
            return
        ledger, whole = self.ledger(), self._whole()
        if self._updates:
            if not ledger.errors:
                self._said = ledger.update(whole)
        else:
            ledger.stale(whole)
        if ledger.errors and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print notes and errors about baselines."""
        ledger = self._ledger
        if ledger is None or hasattr(self._config, "workeroutput"):
            return
        if self._said or ledger.notes or ledger.errors:
            terminalreporter.section("counts of instructions")
        for line in self._said:
            terminalreporter.line(line)
        for note in ledger.notes:
            line = f"{note}: the baseline needs an update (--icount-update)"
            terminalreporter.line(line, yellow=note.startswith("warning: "))
        for error in ledger.errors:
            terminalreporter.line(f"ERROR: {error}", red=True)
