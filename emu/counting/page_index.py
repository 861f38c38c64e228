"""Blocks by the pages that they touch, so that a patch needs to check only its neighbourhood."""

from collections.abc import Iterable

from emu.counting.block import Block

_PAGE_SHIFT = 12


class PageIndex:
    """Index of blocks by page. `K` is the owner's key for a block."""

    def __init__(self) -> None:
        self._pages: dict[int, dict[int, Block]] = {}

    def add(self, key: int, block: Block) -> None:
        """Add a block under its owner's key."""
        for page in self._pages_of(block):
            self._pages.setdefault(page, {})[key] = block

    def take(self, start: int, end: int) -> list[tuple[int, Block]]:
        """Remove the blocks that contain a byte from `start` up to `end`; returns them with their keys."""
        first, last = start >> _PAGE_SHIFT, end - 1 >> _PAGE_SHIFT
        pages: Iterable[int] = range(first, last + 1)
        if last - first >= len(self._pages):
            pages = [page for page in self._pages if first <= page <= last]
        found: dict[int, Block] = {}
        for page in pages:
            for key, block in self._pages.get(page, {}).items():
                if block.address < end and start < block.address + block.size:
                    found[key] = block
        for key, block in found.items():
            for page in self._pages_of(block):
                here = self._pages[page]
                del here[key]
                if not here:
                    del self._pages[page]
        return list(found.items())

    def clear(self) -> None:
        """Remove all blocks."""
        self._pages.clear()

    @staticmethod
    def _pages_of(block: Block) -> range:
        return range(block.address >> _PAGE_SHIFT, (block.address + block.size - 1 >> _PAGE_SHIFT) + 1)
