"""Cookie records of functions whose cookies differ from those of other functions of the same link."""

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
"""Cookies per record; further cookies of a function become constants in a caller of its own."""

record = Struct(
    "tramplab_record",
    size=40 + 8 * SLOTS,
    fields={
        # As in a kfunc_md: the fields that the back ends chain and compare.
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
    """Slots in use or still readable by callers in flight."""
    links: int = 0


class Records:
    """Records of one kernel; guest code finds them through a metadata back end.

    A caller reads a record before it can sleep, so records and slots are freed after a Tasks RCU grace period. Changes
    hold ``tramplab_record_mutex``; a callback, which can't wait for it, defers its work to the holder.
    """

    def __init__(self, kernel: Kernel, backend: MetadataBackend) -> None:
        self._kernel, self.backend = kernel, backend
        self._records: dict[int, _Record] = {}
        self._lock = Lock(kernel.process, "tramplab_record_mutex")

    def hold(self, entries: Sequence[LinkEntry]) -> None:
        """Assigns a slot to each entry's cookie (``TrampLink.cookie_slot``) while slots are free. KernelError -ENOMEM;
        nothing is changed then.
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
        """Guest address of a function's record, 0 if it has none."""
        found = self._records.get(func)
        return found.at if found else 0

    def _prepare(self, functions: Sequence[int]) -> set[int]:
        """Functions whose records the back end can find."""
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
        """Releases the slots of entries; callers in flight may still read them."""
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
            # No caller is left to report an error to; the next release tries again.
            with suppress(KernelError):
                self.backend.shrink()
