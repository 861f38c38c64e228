"""Recordings as text that a test can be read against."""

from emu.recording import Recording


def tree(recording: Recording) -> str:
    """A line for each node, indented: label, times entered, instructions in it."""
    lines = []
    for node in recording.root.walk():
        if node.path:
            lines.append("  " * (len(node.path) - 1) + f"{node.label} {node.calls}x {node.own}")
    return "\n".join(lines)


def spans(recording: Recording, cpu: int = 0) -> str:
    """What one vCPU entered, indented, each with its own instructions from enter to leave; checks that it nests."""
    lines: list[str] = []
    open_: list[tuple[int, object, int]] = []
    for change in recording.changes:
        if change.cpu != cpu:
            continue
        if change.enters:
            open_.append((len(lines), change.node, change.own))
            lines.append("  " * (len(open_) - 1) + change.node.label)
        else:
            line, node, began = open_.pop()
            assert node is change.node
            lines[line] += f" {change.own - began}"
    assert not open_
    return "\n".join(lines)
