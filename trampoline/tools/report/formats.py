"""Formats of reports, and their choice by file name."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from emu.atomic_file import write_whole
from emu.recording import Recording
from emu.recording.export import callgrind, chrome, collapsed, speedscope
from trampoline.bpf.errors import TrampolineError
from trampoline.tools.icount.baseline import Baseline, BaselineEntry
from trampoline.tools.icount.errors import BaselineError

if TYPE_CHECKING:
    from trampoline.tools.report.observed_calls import ObservedTarget

Texts = Mapping[Path, str]
Writer = Callable[[Path, Recording, str], Texts]
"""Makes the texts of a file, and of those next to it, from a recording and its title."""


@dataclass(frozen=True, slots=True)
class ReportFormat:
    """A format. ``endings``: endings of file names that select it. ``write``: None for a page, which shows several
    recordings.
    """

    name: str
    endings: tuple[str, ...]
    write: Writer | None

    @property
    def is_page(self) -> bool:
        """True if it can show several designs, and a baseline."""
        return self.write is None


def _callgrind(path: Path, recording: Recording, title: str) -> Texts:
    listing = path.with_name(f"{path.name}.lst")
    profile = callgrind.profile(recording, title, listing.name)
    return {path: profile.text, listing: profile.listing}


FORMATS = {
    form.name: form
    for form in (
        ReportFormat("html", (".html", ".htm"), None),
        ReportFormat(
            "speedscope", (".speedscope.json",), lambda path, run, title: {path: speedscope.profile(run, title)}
        ),
        ReportFormat("chrome", (".json", ".trace"), lambda path, run, title: {path: chrome.trace(run, title)}),
        ReportFormat("callgrind", (".callgrind",), _callgrind),
        ReportFormat("collapsed", (".collapsed", ".folded"), lambda path, run, _: {path: collapsed.stacks(run)}),
    )
}
"""Formats by name. The first one whose ending matches is selected."""


def format_of(path: Path, name: str | None) -> ReportFormat:
    """The format with a name, or the one that a file's name selects; ``callgrind.*`` selects callgrind. Raises
    TrampolineError if there is none.
    """
    if name is not None:
        return FORMATS[name]
    if path.name.startswith("callgrind."):
        return FORMATS["callgrind"]
    for form in FORMATS.values():
        if path.name.endswith(form.endings):
            return form
    raise TrampolineError(f"{path}: unknown format; --format names one: {', '.join(FORMATS)}")


def texts(
    path: Path, form: ReportFormat, variants: "Sequence[ObservedTarget]", baseline: Mapping[str, BaselineEntry]
) -> Texts:
    """Contents of one file and those next to it. Raises TrampolineError for several designs, or a baseline, in a format
    for one design.
    """
    if form.write is None:
        from trampoline.tools.report.calls_page import calls_page  # loads the debugger, which only pages need

        return {path: calls_page(variants, baseline)}
    if len(variants) > 1 or baseline:
        raise TrampolineError(f"{path}: {form.name} shows one design; html shows several, and baselines")
    first = variants[0]
    title = f"{first.title}, kernel {first.flavour}, {first.config}, design {first.design}"
    return form.write(path, first.recording, title)


def writers(paths: Iterable[Path], name: str | None) -> list[tuple[Path, Writer]]:
    """Writers of the files of a single recording. Raises TrampolineError for a file that selects a page."""
    found = []
    for path in paths:
        form = format_of(path, name)
        if form.write is None:
            raise TrampolineError(f"{path}: only tramp report writes pages; choose another format")
        found.append((path, form.write))
    return found


def write_recording(outputs: Iterable[tuple[Path, Writer]], recording: Recording, title: str) -> None:
    """Write all files of a recording, or none. Raises OSError."""
    files: dict[Path, str] = {}
    for path, write in outputs:
        files.update(write(path, recording, title))
    write_whole(files)


def baseline_of(path: Path, names: Collection[str]) -> Mapping[str, BaselineEntry]:
    """The paths of a baseline that contains at least one of these names. Raises BaselineError."""
    entries = Baseline.read(path).entries
    if entries.keys().isdisjoint(names):
        raise BaselineError(path, f"it has no {' and no '.join(sorted(names)[:3])}")
    return entries
