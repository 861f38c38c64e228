"""The forms in which a report can be written, and which one a file's name asks for."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from emu.recording import Recording, callgrind, chrome, collapsed, speedscope
from trampoline.errors import TrampolineError
from trampoline.icount.baseline import Baseline, Entry
from trampoline.icount.errors import BaselineError
from trampoline.report.calls_page import calls_page
from trampoline.report.observe import Observed

Texts = Mapping[Path, str]


@dataclass(frozen=True, slots=True)
class Format:
    """A form: ``endings`` of the names that ask for it; ``write`` gives the texts of a file and of those beside it.

    ``compares``: it can show several designs, and a baseline.
    """

    name: str
    endings: tuple[str, ...]
    write: Callable[[Path, Sequence[Observed], Mapping[str, Entry]], Texts]
    compares: bool = False


def _html(path: Path, variants: Sequence[Observed], baseline: Mapping[str, Entry]) -> Texts:
    return {path: calls_page(variants, baseline)}


def _one(text: Callable[[Recording, str], str]) -> Callable[[Path, Sequence[Observed], Mapping[str, Entry]], Texts]:
    """The format of one design's recording that is one text."""
    return lambda path, variants, _: {path: text(variants[0].recording, _title(variants[0]))}


def _callgrind(path: Path, variants: Sequence[Observed], _: Mapping[str, Entry]) -> Texts:
    listing = path.with_name(f"{path.name}.lst")
    profile = callgrind.profile(variants[0].recording, _title(variants[0]), listing.name)
    return {path: profile.text, listing: profile.listing}


def _title(observed: Observed) -> str:
    return f"{observed.title}, kernel {observed.flavour}, {observed.config}, design {observed.design}"


FORMATS = {
    form.name: form
    for form in (
        Format("html", (".html", ".htm"), _html, compares=True),
        Format("speedscope", (".speedscope.json",), _one(speedscope.profile)),
        Format("chrome", (".json", ".trace"), _one(chrome.trace)),
        Format("callgrind", (".callgrind",), _callgrind),
        Format("collapsed", (".collapsed", ".folded"), _one(lambda recording, _: collapsed.stacks(recording))),
    )
}
"""By name. Of the endings that fit, the first one counts."""


def format_of(path: Path, name: str | None) -> Format:
    """The format of a name, or the one that a file's name asks for; ``callgrind.*`` is callgrind's. TrampolineError
    where there is none.
    """
    if name is not None:
        return FORMATS[name]
    if path.name.startswith("callgrind."):
        return FORMATS["callgrind"]
    for form in FORMATS.values():
        if path.name.endswith(form.endings):
            return form
    raise TrampolineError(f"{path}: which format? --format says it: {', '.join(FORMATS)}")


def texts(path: Path, form: Format, variants: Sequence[Observed], baseline: Mapping[str, Entry]) -> Texts:
    """What is to be written for one file. TrampolineError for several designs, or a baseline, in a format that has room
    for one design.
    """
    if (len(variants) > 1 or baseline) and not form.compares:
        raise TrampolineError(f"{path}: {form.name} has room for one design; html shows several, and baselines")
    return form.write(path, variants, baseline)


def baseline_of(path: Path, names: Collection[str]) -> Mapping[str, Entry]:
    """The paths of a baseline, some of which must have these names. BaselineError."""
    entries = Baseline.read(path).entries
    if entries.keys().isdisjoint(names):
        raise BaselineError(path, f"it has no {' and no '.join(sorted(names)[:3])}")
    return entries
