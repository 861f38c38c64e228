"""Collapsed stacks, as flamegraph.pl, inferno, speedscope and others read them: ``a;b;c COUNT``."""

from emu.recording.model import Recording


def stacks(recording: Recording) -> str:
    """A line for each path with executed instructions, outermost function first, and their number."""
    summed: dict[str, int] = {}
    for node in recording.root.walk():
        if own := node.own:
            path = ";".join(_word(one.label) for one in node.path)
            summed[path] = summed.get(path, 0) + own
    return "".join(f"{path} {own}\n" for path, own in summed.items())


def _word(label: str) -> str:
    """A name without the separators of names and counts."""
    return label.replace(";", ":").replace(" ", "_")
