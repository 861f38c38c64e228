"""Comparison of recorded verdicts: load and attach every case, and compare the outcome with the kernel's."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from errno import EINVAL
from functools import lru_cache
from pathlib import Path
from typing import Any

from trampoline.bpf.btf.btf import Btf
from trampoline.bpf.errors import GoldenError, errno_name
from trampoline.bpf.program import BpfProgram
from trampoline.bpf.verifier.errors import Unsupported, VerifierError
from trampoline.bpf.verifier.kernel_view import KernelView
from trampoline.bpf.verifier.load.bpf_link_create import Links
from trampoline.bpf.verifier.load.bpf_prog_load import VerifiedLoad, bpf_prog_load
from trampoline.releases.kernel_release import KernelRelease
from trampoline.tools.golden.fields import add_up
from trampoline.tools.golden.trampoline_images import Difference
from trampoline.tools.golden.verdict_case import VerdictCase, read_verdicts
from trampoline.tools.golden.verdict_program import program_of, target_program

UNSUPPORTED = "unsupported"
_REFUSED = ("load_refused", "attach_refused")


@dataclass(slots=True)
class VerdictCounts:
    """``agree``: same outcome and errno. ``false_accepts``: the kernel refused load or attach, this package did not.
    ``unsupported``: verifier-lite has no answer.
    """

    total: int = 0
    agree: int = 0
    false_accepts: int = 0
    unsupported: int = 0


@dataclass(slots=True)
class VerdictTotals(VerdictCounts):
    """Counts of all cases, and of each category."""

    by_category: dict[str, VerdictCounts] = field(default_factory=dict)

    def count(self, case: VerdictCase, answer: "VerdictAnswer") -> None:
        """Count one case."""
        refused = case.verdict in _REFUSED
        counts = VerdictCounts(
            total=1,
            agree=int(answer.agrees(case)),
            false_accepts=int(refused and answer.verdict in ("loaded", "attached")),
            unsupported=int(answer.verdict == UNSUPPORTED),
        )
        add_up(self, replace(VerdictTotals(by_category={case.category: counts}), **asdict(counts)))

    def to_json(self) -> dict[str, Any]:
        """The counts as plain values, categories by name."""
        categories = {name: asdict(counts) for name, counts in sorted(self.by_category.items())}
        return asdict(self) | {"by_category": categories}


@dataclass(frozen=True, slots=True)
class VerdictAnswer:
    """This package's answer to a case: one of the recorded verdicts, or ``unsupported``."""

    verdict: str
    errno: int = 0
    message: str = ""

    def agrees(self, case: VerdictCase) -> bool:
        """True if the kernel answered the same."""
        return (self.verdict, self.errno) == (case.verdict, case.errno)

    def __str__(self) -> str:
        return _outcome(self.verdict, self.errno, self.message)


class Judge:
    """Answers the cases of one kernel in the order of their recording; programs and links that stay are kept."""

    def __init__(self, release: KernelRelease, btf: Btf) -> None:
        self.kernel = KernelView(release.verifier, btf)
        self.links = Links(self.kernel, release.trampoline)
        self._targets = {"tgt1": target_program()}

    def answer(self, case: VerdictCase) -> VerdictAnswer:
        """Load and attach a case, and return the outcome."""
        program = program_of(case, self._targets)
        try:
            loaded = self._load(case, program)
        except VerifierError as error:
            return VerdictAnswer("load_refused", error.errno, error.summary)
        except Unsupported as error:
            return VerdictAnswer(UNSUPPORTED, message=str(error))
        if case.kept_as:
            self._targets[case.kept_as] = program
        if not case.attach_mode:
            return VerdictAnswer("loaded")
        if case.request is None:
            return VerdictAnswer(UNSUPPORTED, message=str(Unsupported(f"attaching by {case.attach_mode!r}")))
        self._fill(case, loaded)
        try:
            self.links.attach(loaded, case.request)
        except VerifierError as error:
            return VerdictAnswer("attach_refused", error.errno, error.summary)
        except Unsupported as error:
            return VerdictAnswer(UNSUPPORTED, message=str(error))
        if not case.holds:
            self.links.detach(loaded)
        return VerdictAnswer("attached")

    def _load(self, case: VerdictCase, program: BpfProgram) -> VerifiedLoad:
        if case.target_program and case.target_program not in self._targets:
            raise Unsupported(f"target program {case.target_program}, which no earlier case has kept")
        if case.bad_slot is not None:
            raise VerifierError(EINVAL, "invalid bpf_ld_imm64 insn", case.bad_slot)
        if case.capabilities is None:
            raise Unsupported(f"capabilities dropped as {case.caps_dropped}")
        return bpf_prog_load(
            program,
            self.kernel,
            capabilities=case.capabilities,
            log_level=case.log_level,
            insn_cnt=case.insn_cnt,
        )

    def _fill(self, case: VerdictCase, loaded: VerifiedLoad) -> None:
        """Attach the links of earlier cases on the function, which the recording may lack; their number is in its
        name.
        """
        if case.place is None or loaded.target is None:
            return
        site = (loaded.target.prog, loaded.target.btf_id)
        limit = case.release.trampoline.max_links
        self.links.programs[site] = max(self.links.programs[site], min(case.place, limit))


def compare_verdicts(
    path: Path, btf_folder: Path | None = None, category: str = ""
) -> tuple[VerdictTotals, list[Difference]]:
    """Totals of a file, and every disagreement; ``category``: of these cases only.

    ``btf_folder`` contains the kernels' BTF as ``<release>.btf.xz`` (or ``.btf``, ``.btf.gz``); the default is
    ``../../btf`` relative to the file. Raises GoldenError for a damaged file and for missing BTF.
    """
    totals, differences = VerdictTotals(), []
    for case, answer in answers(path, btf_folder, category):
        totals.count(case, answer)
        if not answer.agrees(case):
            expected = _outcome(case.verdict, case.errno, case.message)
            differences.append(Difference(case.id, "verdict", -1, expected, str(answer)))
    return totals, differences


def answers(
    path: Path, btf_folder: Path | None = None, category: str = ""
) -> Iterator[tuple[VerdictCase, VerdictAnswer]]:
    """Every case of a file with this package's answer. Raises GoldenError."""
    folder = btf_folder or default_btf_folder(path)
    judges: dict[KernelRelease, Judge] = {}
    for case in read_verdicts(path):
        if category and case.category != category:
            continue
        if case.release not in judges:
            judges[case.release] = Judge(case.release, kernel_btf(folder, case.release.name))
        yield case, _answer(judges[case.release], case)


def _answer(judge: Judge, case: VerdictCase) -> VerdictAnswer:
    try:
        return judge.answer(case)
    except Exception as error:
        # An error of this package is a disagreement of the case; the run continues.
        return VerdictAnswer(UNSUPPORTED, message=f"{type(error).__name__}: {error}")


def default_btf_folder(path: Path) -> Path:
    """Default folder of the kernels' BTF: next to the folder that contains the recordings' folder."""
    return path.resolve().parent.parent.parent / "btf"


def kernel_btf(folder: Path, release: str) -> Btf:
    """A release's BTF from a folder. Raises GoldenError if it is missing, BtfError if it is damaged."""
    for suffix in (".btf.xz", ".btf.gz", ".btf"):
        if (path := folder / f"{release}{suffix}").is_file():
            return _read_btf(path.resolve())
    raise GoldenError(f"{folder} has no BTF of kernel {release} ({release}.btf.xz); --btf names the folder with it")


@lru_cache(maxsize=4)
def _read_btf(path: Path) -> Btf:
    return Btf.read(path)


def _outcome(verdict: str, errno: int, message: str) -> str:
    text = f"{verdict} {errno_name(errno)}" if errno else verdict
    return f"{text}: {message}" if message else text
