"""Files without a name, for memory images that must be unpacked before they can be mapped."""

import os
import sys
import tempfile


def unnamed_file() -> int:
    """Descriptor of an empty file that vanishes once nothing refers to it: in memory where the host has such files."""
    if sys.platform == "linux":
        return os.memfd_create("memory image")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def write_all(file: int, data: bytes | memoryview, offset: int) -> None:
    """Write all bytes at an offset."""
    view = memoryview(data)
    while view:
        written = os.pwrite(file, view, offset)
        view, offset = view[written:], offset + written
