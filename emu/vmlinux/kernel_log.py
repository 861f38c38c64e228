"""The kernel's log in memory: the printk ring buffer (kernel/printk/printk_ringbuffer.c)."""

from dataclasses import dataclass

from emu.errors import NotMapped
from emu.machine.address_map import ADDRESS_MASK
from emu.vmlinux.btf_layout import BtfLayout, UnknownLayout
from emu.vmlinux.dump_errors import MissingPage
from emu.vmlinux.kallsyms import Kallsyms
from emu.vmlinux.page_walk import PageTables

_STATE_SHIFT = 62
_COMMITTED, _FINALIZED = 1, 2
_DATALESS = 1
_LONGEST = 2048


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One record. ``nanoseconds`` since boot; ``level`` 0 (emergency) to 7 (debug)."""

    sequence: int
    nanoseconds: int
    level: int
    text: str


class KernelLog:
    """Reads the ring buffer of one kernel; ``new_records`` gives what came since the last ``mark``."""

    def __init__(self, memory: PageTables, symbols: Kallsyms, layout: BtfLayout) -> None:
        self._memory, self._layout = memory, layout
        self._pointer = symbols.get("prb")
        self._seen: int | None = None
        self.mark()

    def mark(self) -> None:
        """Take what the buffer holds for seen."""
        self._seen = self._head()

    def _offset(self, path: str) -> int:
        return self._layout.offset("printk_ringbuffer", path)

    def _head(self) -> int | None:
        """Identifier of the newest descriptor; None where the dump lacks the buffer."""
        if self._pointer is None:
            return None
        try:
            buffer = self._memory.u64(self._pointer)
            return self._memory.u64(buffer + self._offset("desc_ring.head_id.counter"))
        except (MissingPage, NotMapped, UnknownLayout):
            return None

    def new_records(self) -> list[LogRecord]:
        """Records since the last ``mark``."""
        seen, head = self._seen, self._head()
        return [] if head is None or seen is None or head <= seen else self._records(seen + 1, head)

    def records(self) -> list[LogRecord]:
        """All records that the buffer holds, oldest first: empty where the dump lacks it."""
        head = self._head()
        if head is None or self._pointer is None:
            return []
        try:
            tail = self._memory.u64(self._memory.u64(self._pointer) + self._offset("desc_ring.tail_id.counter"))
            return self._records(tail, head)
        except (MissingPage, NotMapped):
            return []

    def _records(self, first: int, last: int) -> list[LogRecord]:
        memory, layout = self._memory, self._layout
        assert self._pointer is not None
        buffer = memory.u64(self._pointer)
        count = 1 << memory.u32(buffer + self._offset("desc_ring.count_bits"))
        descriptors = memory.u64(buffer + self._offset("desc_ring.descs"))
        infos = memory.u64(buffer + self._offset("desc_ring.infos"))
        data = memory.u64(buffer + self._offset("text_data_ring.data"))
        size = 1 << memory.u32(buffer + self._offset("text_data_ring.size_bits"))
        state_at = layout.offset("prb_desc", "state_var.counter")
        begin_at = layout.offset("prb_desc", "text_blk_lpos.begin")
        next_at = layout.offset("prb_desc", "text_blk_lpos.next")
        found = []
        for number in range(max(first, last - count + 1), last + 1):
            descriptor = descriptors + layout.size("prb_desc") * (number % count)
            state = memory.u64(descriptor + state_at)
            same = (state ^ number) << 2 & ADDRESS_MASK == 0
            if state >> _STATE_SHIFT not in (_COMMITTED, _FINALIZED) or not same:
                continue
            info = infos + layout.size("printk_info") * (number % count)
            begin, following = memory.u64(descriptor + begin_at), memory.u64(descriptor + next_at)
            length = min(memory.u16(info + layout.offset("printk_info", "text_len")), _LONGEST)
            if begin & _DATALESS:
                length = 0
            # A record that does not fit before the end of the ring stands at its start; a word of it is the identifier.
            at = 0 if begin // size != following // size and following % size else begin % size
            level = memory.read(info + layout.offset("printk_info", "flags"), 1)[0] >> 5
            text = memory.read(data + at + 8, length).decode("utf-8", "replace") if length else ""
            found.append(
                LogRecord(
                    memory.u64(info + layout.offset("printk_info", "seq")),
                    memory.u64(info + layout.offset("printk_info", "ts_nsec")),
                    level,
                    text,
                )
            )
        return found
