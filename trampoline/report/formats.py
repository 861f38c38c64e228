"""The forms in which a report can be written, and which one a file's name asks for."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from emu.recording import callgrind, chrome, collapsed, speedscope
from trampoline.errors import TrampolineError
from trampoline.report.observe import Observed
from trampoline.report.page import calls_page

Texts = Mapping[Path, str]


@dataclass(frozen=True, slots=True)
class Format:
    """A form: ``endings`` of the names that ask for it; ``write`` gives the texts of a file and of those beside it.

    ``compares``: it can show several designs.
    """

    name: str
    endings: tuple[str, ...]
    write: Callable[[Path, Sequence[Observed]], Texts]
    compares: bool = False


def _html(path: Path, variants: Sequence[Observed]) -> Texts:
    return {path: calls_page(variants)}


def _chrome(path: Path, variants: Sequence[Observed]) -> Texts:
    return {path: chrome.trace(variants[0].recording, _title(variants[0]))}


def _speedscope(path: Path, variants: Sequence[Observed]) -> Texts:
    return {path: speedscope.profile(variants[0].recording, _title(variants[0]))}


def _collapsed(path: Path, variants: Sequence[Observed]) -> Texts:
    return {path: collapsed.stacks(variants[0].recording)}


def _callgrind(path: Path, variants: Sequence[Observed]) -> Texts:
    listing = path.with_name(f"{path.name}.lst")
    profile = callgrind.profile(variants[0].recording, _title(variants[0]), listing.name)
    return {path: profile.text, listing: profile.listing}


def _title(observed: Observed) -> str:
    return f"{observed.title}, kernel {observed.flavour}, {observed.config}, design {observed.design}"


FORMATS = {
    form.name: form
    for form in (
        Format("html", (".html", ".htm"), _html, compares=True),
        Format("speedscope", (".speedscope.json",), _speedscope),
        Format("chrome", (".json", ".trace"), _chrome),
        Format("callgrind", (".callgrind",), _callgrind),
        Format("collapsed", (".collapsed", ".folded"), _collapsed),
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


def texts(path: Path, form: Format, variants: Sequence[Observed]) -> Texts:
    """What is to be written for one file. TrampolineError for several designs in a format that has room for one."""
    if len(variants) > 1 and not form.compares:
        raise TrampolineError(f"{path}: {form.name} has room for one design; html shows several")
    return form.write(path, variants)
