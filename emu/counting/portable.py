"""Counting by a Python block hook, for hosts that refuse executable memory: the same numbers, some 70 times slower."""

import ctypes
from collections.abc import Callable, Iterator
from typing import Final

from unicorn.unicorn_const import UC_HOOK_BLOCK
from unicorn.unicorn_py3.unicorn import Uc

from emu.counting.block import Block, BlockEnd, decode_block
from emu.counting.engine_hook import EngineHook, address_of, stop_engine
from emu.counting.ledger import BlockLedger
from emu.counting.page_index import PageIndex

_BLOCK_HOOK: Final = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_void_p)
_NO_RETURN: Final = -1
_PLAIN: Final = BlockEnd.PLAIN
_REP: Final = BlockEnd.REP
_CALL: Final = BlockEnd.CALL


class _Entry:
    __slots__ = ("block", "count", "end", "end_address", "key")

    def __init__(self, key: tuple[int, int], block: Block) -> None:
        self.key = key
        self.block = block
        self.end = block.end
        self.end_address = block.end_address
        self.count = 0


class PortableCounter(BlockLedger):
    """Counter of blocks."""

    method = "portable"

    def __init__(self, uc: Uc, read_code: Callable[[int, int], bytes], return_stack_depth: int) -> None:
        self._entries: dict[tuple[int, int], _Entry] = {}
        self._by_id: dict[int, _Entry] = {}
        self._index = PageIndex()
        self._touched: list[_Entry] = []
        self._previous: _Entry | None = None
        self._returns = [_NO_RETURN] * return_stack_depth
        self._top = 0
        self._unbalanced = 0
        self._stop = False
        self._callback = _BLOCK_HOOK(self._entered)
        self._hook = EngineHook(uc, UC_HOOK_BLOCK, address_of(self._callback), 0)
        super().__init__(uc, read_code)

    @property
    def unbalanced_returns(self) -> int:
        """Returns since the reset that didn't go where the return stack said."""
        return self._unbalanced

    def request_stop(self, wanted: bool = True) -> None:
        """End the run at the start of the next block, which ``end`` is told was not executed. From any thread."""
        self._stop = wanted

    def push_return(self, return_address: int) -> None:
        """Record a call made by the host, as if a call instruction had pushed this return address."""
        self._top = (self._top + 1) % len(self._returns)
        self._returns[self._top] = return_address

    def _pop_return(self, rip: int) -> None:
        if self._returns[self._top] != rip:
            self._unbalanced += 1
        self._returns[self._top] = _NO_RETURN
        self._top = (self._top - 1) % len(self._returns)

    def _entered(self, engine: int, address: int, size: int, _argument: int | None) -> None:
        try:
            entry = self._entries.get((address, size)) or self._insert(address, size)
            previous, self._previous = self._previous, entry
            if previous is not None and previous.end is not _PLAIN:
                if previous.end is _REP:
                    if previous.end_address == address:
                        return
                elif previous.end is _CALL:
                    self.push_return(previous.end_address)
                else:
                    self._pop_return(address)
            if not entry.count:
                self._touched.append(entry)
            entry.count += 1
            if self._stop:
                self._stop = False
                stop_engine(engine)
        except BaseException as error:  # the engine can't propagate it: end() raises it
            self._error = self._error or error
            self._previous = None
            stop_engine(engine)

    def _insert(self, address: int, size: int) -> _Entry:
        entry = _Entry((address, size), decode_block(self._read_code, address, size))
        self._entries[entry.key] = entry
        self._by_id[id(entry)] = entry
        self._index.add(id(entry), entry.block)
        return entry

    def _last(self) -> Block | None:
        return None if self._previous is None else self._previous.block

    def _set_last(self, block: Block | None) -> None:
        self._previous = None if block is None else _Entry((0, 0), block)

    def _executed(self) -> Iterator[tuple[Block, int]]:
        return ((entry.block, entry.count) for entry in self._touched if entry.count)

    def _forget(self, start: int, end: int) -> Iterator[tuple[Block, int]]:
        for key, block in self._index.take(start, end):
            entry = self._by_id.pop(key)
            del self._entries[entry.key]
            count, entry.count = entry.count, 0
            if count:
                yield block, count

    def _zero(self) -> None:
        for entry in self._touched:
            entry.count = 0
        self._touched.clear()
        self._unbalanced = 0
        self._returns = [_NO_RETURN] * len(self._returns)
        self._top = 0

    def _detach(self) -> None:
        self._hook.remove()
        del self._hook, self._callback
        self._entries.clear()
        self._by_id.clear()
        self._index.clear()
        self._touched.clear()
        self._previous = None
