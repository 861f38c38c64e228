"""Executable memory for images."""

import pytest

from emu.errors import OutOfMemory


def test_an_allocation_that_cannot_be_mapped_takes_nothing(kernel, monkeypatch):
    def refuse(*args, **options):
        raise OutOfMemory(1, 0)

    execmem = kernel.execmem
    first = execmem.alloc(100, "first")
    execmem.free(first)
    with monkeypatch.context() as patch:
        patch.setattr(kernel.machine, "map", refuse)
        with pytest.raises(OutOfMemory):
            execmem.alloc(8192, "large")
    assert execmem.images == {}
    assert execmem.alloc(8192, "large") == first
