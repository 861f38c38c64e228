"""Records of functions whose cookies differ from those of other functions of the same link."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from errno import EOPNOTSUPP

from emu.kernel.errors import KernelError
from emu.kernel.kernel import Kernel
from emu.kernel.process_context import Lock
from emu.kernel.rcu import RcuFlavour
from emu.kernel.structs import Struct, u64
from trampoline.kfunc_md.backend import MetadataBackend
from trampoline.update.target import LinkEntry

SLOTS = 4
"""Cookies of a record; a function's further ones become constants of a caller of its own."""

record = Struct(
    "tramplab_record",
    size=40 + 8 * SLOTS,
    fields={
        # As in a kfunc_md: what the back ends chain and compare.
        "hash": u64(0).array(2),
        "rcu": u64(16).array(2),
        "func": u64(32),
        "cookies": u64(40).array(SLOTS),
    },
)


@dataclass(slots=True)
class _Record:
    at: int
    taken: set[int] = field(default_factory=set)
    """Slots in use, or that callers may still read."""
    links: int = 0


class Records:
    """The records of one kernel, found by guest code through a metadata back end.

    A caller reads a record before anything in it may sleep, so a record and a slot of it are free again after an
    RCU-tasks grace period. Who changes them holds ``tramplab_record_mutex``; a callback, which can't wait for it,
    leaves what it has to do to its holder.
    """

    def __init__(self, kernel: Kernel, backend: MetadataBackend) -> None:
        self._kernel, self.backend = kernel, backend
        self._records: dict[int, _Record] = {}
        self._lock = Lock(kernel.process, "tramplab_record_mutex")

    def hold(self, entries: Sequence[LinkEntry]) -> None:
        """Give each entry's cookie a slot (``TrampLink.cookie_slot``), where there is one. KernelError (-ENOMEM):
        nothing was changed.
        """
        if entries:
            with self._lock:
                self._hold(entries)

    def _hold(self, entries: Sequence[LinkEntry]) -> None:
        fresh: dict[int, int] = {}
        head = bytes(record.offset("func"))
        try:
            for entry in entries:
                func = entry.target.address
                if func not in self._records:
                    content = head + func.to_bytes(8, "little") + entry.link.cookie.to_bytes(8, "little")
                    fresh[func] = self.backend.nodes.alloc(record.size, f"tramplab_record of {func:#x}", content)
            fit = self._prepare(list(fresh))
        except BaseException:
            for at in fresh.values():
                self.backend.nodes.free(at)
            raise
        for func in [func for func in fresh if func not in fit]:
            self.backend.nodes.free(fresh.pop(func))
        for entry in entries:
            func = entry.target.address
            if func in fresh:
                found = self._records[func] = _Record(fresh[func])
            elif func in self._records:
                found = self._records[func]
            else:
                continue
            slot = next((slot for slot in range(SLOTS) if slot not in found.taken), None)
            if slot is None:
                continue
            found.taken.add(slot)
            found.links += 1
            entry.link.cookie_slot = slot
            if func not in fresh:
                self._kernel.machine.write_u64(found.at + record.offset("cookies") + 8 * slot, entry.link.cookie)
        self.backend.insert(fresh)

    def at(self, func: int) -> int:
        """Guest address of a function's record, 0 without."""
        found = self._records.get(func)
        return found.at if found else 0

    def _prepare(self, functions: Sequence[int]) -> set[int]:
        """Those that the back end can find records of."""
        try:
            self.backend.prepare(functions)
        except KernelError as error:
            if error.errno != EOPNOTSUPP:
                raise
            if len(functions) == 1:
                return set()
            return {func for func in functions if self._prepare((func,))}
        return set(functions)

    def release(self, entries: Sequence[LinkEntry]) -> None:
        """The cookies are read by callers under way at most."""
        held = [entry for entry in entries if entry.link.cookie_slot is not None]
        if held:
            with self._lock:
                self._release(held)

    def _release(self, entries: Sequence[LinkEntry]) -> None:
        gone: dict[int, int] = {}
        slots: list[tuple[_Record, int]] = []
        for entry in entries:
            func = entry.target.address
            found = self._records[func]
            found.links -= 1
            assert entry.link.cookie_slot is not None
            slots.append((found, entry.link.cookie_slot))
            entry.link.cookie_slot = None
            if not found.links:
                gone[func] = self._records.pop(func).at
        if gone:
            self.backend.remove(list(gone))
        self._kernel.rcu.call(RcuFlavour.RCU_TASKS, lambda: self._free(gone, slots))

    def _free(self, gone: dict[int, int], slots: list[tuple[_Record, int]]) -> None:
        if not self._lock.try_acquire():
            self._lock.defer(lambda: self._free(gone, slots))
            return
        try:
            self._free_held(gone, slots)
        finally:
            self._lock.release()

    def _free_held(self, gone: dict[int, int], slots: list[tuple[_Record, int]]) -> None:
        for found, slot in slots:
            found.taken.discard(slot)
        self.backend.forget(list(gone))
        for at in gone.values():
            self.backend.nodes.free(at)
        if gone:
            # Nobody waits for this any more who could be told. The next one that goes tries again.
            with suppress(KernelError):
                self.backend.shrink()
