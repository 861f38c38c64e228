"""The fixture ``icount``: what a test calls to hold a path against its baseline."""

from collections.abc import Callable, Mapping

from emu.machine.vcpu import Call
from trampoline.bpf.errors import TrampolineError
from trampoline.lab import Lab
from trampoline.tools.icount.capture import path_of_call
from trampoline.tools.icount.counted_path import CountedPath
from trampoline.tools.icount.ledger import CheckLedger, CheckRecord
from trampoline.tools.icount.limits import Limits

Counted = CountedPath | Call | Callable[[], "CountedPath | Call"]
"""A path, a call that was counted, or what makes one."""


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
        """Hold one path against the count of that name in the test module's baseline; gives the path.

        ``call``: a call while its programs are attached, or what makes one. ``lab``: where it was made, without it the
        fixture ``tracing``. ``soft``, ``hard``: how far from its baseline it may be, ``3`` instructions or
        ``"2%"``: farther than ``soft`` is a warning. A path that is longer or shorter by more than ``hard``, or has
        other unbalanced returns, fails the test, with old, new and difference for every phase, and the code that
        changed. So does a name that the baseline has not. TrampolineError for a name that another check has, a limit
        that is none, a call that was not counted.
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
        """``check`` many paths by name; one failure says what is wrong with all of them."""
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
            raise TrampolineError(f"{name}: a call or a path can be checked, not {type(made).__name__}")
        if lab is None:
            found = self._tracing()
            if not isinstance(found, Lab):
                raise TrampolineError(f"{name}: where was it called? Use the fixture tracing, or give lab=")
            lab = found
        return path_of_call(lab, made)
