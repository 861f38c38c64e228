"""The fixture ``icount``, with which a test compares a path with its baseline."""

from collections.abc import Callable, Mapping

from emu.machine.vcpu import Call
from trampoline.bpf.errors import TrampolineError
from trampoline.lab import Lab
from trampoline.tools.icount.capture import path_of_call
from trampoline.tools.icount.counted_path import CountedPath
from trampoline.tools.icount.ledger import CheckLedger, CheckRecord
from trampoline.tools.icount.limits import Limits

Counted = CountedPath | Call | Callable[[], "CountedPath | Call"]
"""A path, a counted call, or a function that returns one."""


class Icount:
    """Checks of one test. ``fail`` ends the test with a message."""

    def __init__(
        self,
        ledger: CheckLedger,
        module: str,
        test: str,
        limits: tuple[str, str],
        *,
        update: bool,
        tracing: Callable[[], object],
        fail: Callable[[str], None],
    ) -> None:
        self._ledger, self._module, self._test, self._limits = ledger, module, test, limits
        self._update, self._tracing, self._fail = update, tracing, fail

    def check(
        self,
        name: str,
        call: Counted,
        *,
        lab: Lab | None = None,
        soft: int | str | None = None,
        hard: int | str | None = None,
    ) -> CountedPath:
        """Compare one path with the count of that name in the test module's baseline; returns the path.

        ``call``: a call whose programs are still attached, or a function that makes one. ``lab``: its laboratory, by
        default the fixture ``tracing``. ``soft``, ``hard``: allowed difference from the baseline, ``3`` instructions or
        ``"2%"``; beyond ``soft`` is a warning. The test fails, with old, new and difference for every phase and the
        changed code, if the path differs by more than ``hard`` or in unbalanced returns, or if the baseline lacks the
        name. Raises TrampolineError for a name that another check has, an invalid limit, a call that was not counted.
        """
        return self.check_all({name: call}, lab=lab, soft=soft, hard=hard)[name]

    def check_all(
        self,
        calls: Mapping[str, Counted],
        *,
        lab: Lab | None = None,
        soft: int | str | None = None,
        hard: int | str | None = None,
    ) -> dict[str, CountedPath]:
        """``check`` for many paths by name; one failure reports all of them."""
        limits = Limits.parse(self._limits[0] if soft is None else soft, self._limits[1] if hard is None else hard)
        records: dict[str, CheckRecord] = {}
        for name, call in calls.items():
            records[name] = CheckRecord(self._path(name, call, lab), limits, self._test)
            self._ledger.add(self._module, name, records[name])
        if not self._update:
            wrong = self._ledger.check(self._module, records)
            if wrong:
                self._fail(wrong)
        return {name: record.path for name, record in records.items()}

    def _path(self, name: str, call: Counted, lab: Lab | None) -> CountedPath:
        made = call() if callable(call) else call
        if isinstance(made, CountedPath):
            return made
        if not isinstance(made, Call):
            raise TrampolineError(f"{name}: expected a call or a path, not {type(made).__name__}")
        if lab is None:
            found = self._tracing()
            if not isinstance(found, Lab):
                raise TrampolineError(f"{name}: no laboratory; use the fixture tracing, or pass lab=")
            lab = found
        return path_of_call(lab, made)
