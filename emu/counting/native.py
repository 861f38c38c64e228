"""Counting by machine code: Python is entered only for new blocks, and to read the counts."""

import ctypes
import threading
from collections.abc import Callable, Iterator
from typing import Final

from unicorn.unicorn_const import UC_HOOK_BLOCK, UC_HOOK_CODE
from unicorn.unicorn_py3.unicorn import Uc

from emu.counting import machine_code as layout
from emu.counting.block import Block, BlockEnd, decode_block
from emu.counting.engine_hook import STOP_ENGINE, EngineHook, address_of, stop_engine
from emu.counting.ledger import BlockLedger
from emu.counting.page_index import PageIndex

_UNKNOWN_BLOCK: Final = ctypes.CFUNCTYPE(
    ctypes.c_uint64, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_void_p
)
_NEVER: Final = 0xFFFF_FFFF_FFFF_FFFF
_NO_SIZE: Final = 0xFFFF_FFFF
_MANY_FORGOTTEN: Final = 64
"""Number of forgotten slots from which the table is rebuilt, as searches pass too many of them."""
# Words of the area.
_PREVIOUS: Final = layout.PREVIOUS // 8
_TOP: Final = layout.RETURN_TOP // 8
_UNBALANCED: Final = layout.UNBALANCED // 8
_TOUCHED_COUNT: Final = layout.TOUCHED_COUNT // 8
_TOUCHED: Final = layout.TOUCHED // 8
_FIRST: Final = layout.RETURN_FIRST // 8
_LAST: Final = layout.RETURN_LAST // 8


class NativeCounter(BlockLedger):
    """Counter of blocks (`each` False) or of every instruction as a block of its own (`each` True).

    `OSError` if executable memory is refused.
    """

    def __init__(
        self, uc: Uc, read_code: Callable[[int, int], bytes], each: bool, return_stack_depth: int, engine_limits: bool
    ) -> None:
        self.method = "each" if each else "native"
        self._limit_comes_first = each and engine_limits
        code = layout.executable_code()
        self._code: layout.Area | None = code
        self._area = layout.counting_area(return_stack_depth)
        self._blocks: dict[int, Block] = {}  # by slot
        self._index = PageIndex()
        self._full = layout.HASHED_SLOTS // 2
        self._forgotten = 0
        self._scratch_block: Block | None = None
        self._unknown = _UNKNOWN_BLOCK(self._unknown_block)
        self._slots_address = self._area.address + layout.SLOTS
        self._scratch_address = self._area.address + layout.SCRATCH
        self._unbalanced = 0
        words = self._area.words
        words[layout.UNKNOWN_BLOCK // 8] = address_of(self._unknown)
        words[layout.STOP_ENGINE // 8] = STOP_ENGINE
        self._empty_return_stack()
        self._set_last(None)
        self._stopping = threading.Lock()
        kind = UC_HOOK_CODE if each else UC_HOOK_BLOCK
        self._hook = EngineHook(uc, kind, code.address + layout.ENTRY, self._area.address)
        super().__init__(uc, read_code)

    @property
    def unbalanced_returns(self) -> int:
        """Returns since the reset that didn't go where the return stack said."""
        return self._unbalanced if self._uc is None else self._area.words[_UNBALANCED]

    def request_stop(self, wanted: bool = True) -> None:
        """End the run at the start of the next block, which ``end`` is told was not executed. From any thread."""
        with self._stopping:
            if self._code is not None:
                layout.want_stop(self._code, wanted)

    def push_return(self, return_address: int) -> None:
        """Record a call made by the host, as if a call instruction had pushed this return address."""
        words = self._area.words
        top = words[_TOP]
        words[_TOP] = top = words[_FIRST] if top == words[_LAST] else top + 8
        words[(top - self._area.address) // 8] = return_address

    def _pop_return(self, rip: int) -> None:
        words = self._area.words
        top = words[_TOP]
        entry = (top - self._area.address) // 8
        if words[entry] != rip:
            words[_UNBALANCED] += 1
        words[entry] = layout.NO_RETURN
        words[_TOP] = words[_LAST] if top == words[_FIRST] else top - 8

    def _last(self) -> Block | None:
        previous = self._area.words[_PREVIOUS]
        if previous == self._scratch_address:
            return self._scratch_block
        return self._blocks.get((previous - self._slots_address) // layout.SLOT_SIZE)

    def _set_last(self, block: Block | None) -> None:
        self._scratch_block = block
        words = self._area.words
        scratch = layout.SCRATCH // 8
        words[scratch + 1] = (BlockEnd.PLAIN if block is None else block.end) << 32 | _NO_SIZE
        words[scratch + 2] = 0
        words[scratch + 3] = 0 if block is None else block.end_address
        words[_PREVIOUS] = self._scratch_address

    def _touched(self) -> Iterator[int]:
        words = self._area.words
        base, size = self._slots_address, layout.SLOT_SIZE
        for touched in words[_TOUCHED : _TOUCHED + words[_TOUCHED_COUNT]]:
            yield (touched - base) // size

    def _executed(self) -> Iterator[tuple[Block, int]]:
        if self._uc is None:
            return
        words, blocks = self._area.words, self._blocks
        for slot in self._touched():
            executed = words[_word(slot) + 2] + 1 & _NEVER
            if executed:
                yield blocks[slot], executed

    def _unknown_block(self, engine: int, address: int, size: int, _area: int) -> int:
        try:
            block = decode_block(self._read_code, address, size)
            return self._slots_address + self._insert(block, size) * layout.SLOT_SIZE
        except BaseException as error:  # machine code can't propagate it: end() raises it
            self._error = self._error or error
            stop_engine(engine)
            self._set_last(None)
            return self._scratch_address

    def _insert(self, block: Block, size: int) -> int:
        words = self._area.words
        slot = self._free_slot(block.address)
        if slot == layout.SLOT_COUNT - 1 or len(self._blocks) >= self._full or self._forgotten > _MANY_FORGOTTEN:
            self._empty_table()
            slot = self._free_slot(block.address)
        at = _word(slot)
        words[at] = block.address
        words[at + 1] = block.end << 32 | size
        words[at + 2] = _NEVER
        words[at + 3] = block.end_address
        self._blocks[slot] = block
        self._index.add(slot, block)
        return slot

    def _free_slot(self, address: int) -> int:
        words = self._area.words
        slot = layout.slot_for(address)
        while words[_word(slot) + 1]:
            slot += 1
        return slot

    def _empty_table(self) -> None:
        self._set_last(self._last())
        for block, count in self._executed():
            for address in block.addresses:
                self._settle(address, count)
        words = self._area.words
        for slot in self._blocks:
            words[_word(slot)] = words[_word(slot) + 1] = 0
        words[_TOUCHED_COUNT] = 0
        self._blocks.clear()
        self._index.clear()
        self._forgotten = 0

    def _forget(self, start: int, end: int) -> Iterator[tuple[Block, int]]:
        words = self._area.words
        for slot, block in self._index.take(start, end):
            at = _word(slot)
            # The slot stays taken, under a size that no block has: searches continue past it, and it may be that of the
            # last block.
            words[at + 1] |= _NO_SIZE
            self._forgotten += 1
            executed = words[at + 2] + 1 & _NEVER
            words[at + 2] = _NEVER
            if executed:
                yield block, executed

    def _zero(self) -> None:
        words = self._area.words
        for slot in self._touched():
            words[_word(slot) + 2] = _NEVER
        words[_TOUCHED_COUNT] = 0
        words[_UNBALANCED] = 0
        self._empty_return_stack()

    def _empty_return_stack(self) -> None:
        words = self._area.words
        words[_TOP] = words[_FIRST]
        self._area.fill(layout.RETURNS, words[_LAST] + 8 - self._area.address, b"\xff")

    def _detach(self) -> None:
        self._unbalanced = self._area.words[_UNBALANCED]
        self._hook.remove()
        with self._stopping:
            code, self._code = self._code, None
        if code is not None:
            code.close()
        self._area.close()
        del self._hook, self._area, self._unknown
        self._blocks.clear()
        self._index.clear()


def _word(slot: int) -> int:
    return (layout.SLOTS + slot * layout.SLOT_SIZE) // 8
