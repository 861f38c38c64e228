"""ftrace's data in guest memory: the list of ops, their filters, the hash of direct callers.

Only the list function and a direct caller's look-up read the list and the hashes, so they exist while a site reaches
``ftrace_caller`` or ``ftrace_regs_caller``, and for a grace period after. A batch on every function of a kernel does
not write megabytes without a reader.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from emu.kernel.ftrace.hashes import entries_of, write_hash
from emu.kernel.ftrace.ops import FtraceOps
from emu.kernel.mm.slab import Slab
from emu.kernel.process_context import Lock
from emu.kernel.rcu import Rcu, RcuFlavour
from emu.kernel.structs import ftrace_func_entry, ftrace_ops
from emu.kernel.text.kallsyms import Kallsyms
from emu.machine.machine import Machine


class GuestOps:
    """The ops of one kernel as guest code sees them. ``locks``: every writer holds one of them."""

    def __init__(
        self, machine: Machine, slab: Slab, rcu: Rcu, kallsyms: Kallsyms, locks: Sequence[Lock] = ()
    ) -> None:
        self._locks = tuple(locks)
        self._machine, self._slab, self._rcu, self._kallsyms = machine, slab, rcu, kallsyms
        self.registered: dict[FtraceOps, None] = {}
        """All ops, oldest first; the guest's list (``ftrace_ops_list``) begins with the newest."""
        self._live = False
        self._direct = 0
        self._direct_entries: dict[int, int] = {}
        self._use = 0

    # One ops --------------------------------------------------------------------------------------------------------

    def make(self, ops: FtraceOps) -> None:
        """Allocate the struct ftrace_ops of an ops, if it has none. -ENOMEM."""
        if ops.address:
            return
        ops.address = self._slab.alloc(ftrace_ops.size, f"ftrace_ops {ops.name}")
        self.refresh(ops)

    def refresh(self, ops: FtraceOps) -> None:
        """Write the fields of an ops, if it has a struct, without its list pointer and its filter."""
        if ops.address:
            view = ftrace_ops.view(self._machine, ops.address)
            view.func, view.flags, view.private = ops.callback, int(ops.flags), ops.private
            view.func_hash = view.address_of("notrace_hash")
            view.trampoline, view.direct_call = ops.trampoline, ops.direct_call

    def detach(self, ops: FtraceOps) -> Callable[[], None] | None:
        """Separate a removed ops from its guest memory; returns the function that frees it, None without any."""
        addresses = [address for address in (ops.filter_hash, ops.address) if address]
        ops.filter_hash = ops.address = 0

        def free() -> None:
            for address in addresses:
                self._slab.free(address)

        return free if addresses else None

    # The list -------------------------------------------------------------------------------------------------------

    def add(self, ops: FtraceOps) -> None:
        """Put an ops at the head of the list (``add_ftrace_ops``). -ENOMEM."""
        if self._live:
            self._complete(ops)
            head = self._pointer("ftrace_ops_list")
            ftrace_ops.view(self._machine, ops.address).next = self._machine.read_u64(head)
            self._machine.write_u64(head, ops.address)
        self.registered[ops] = None

    def remove(self, ops: FtraceOps) -> None:
        """Remove an ops from the list; a reader at it continues from there (``remove_ftrace_ops``)."""
        del self.registered[ops]
        if not self._live:
            return
        following = int(ftrace_ops.view(self._machine, ops.address).next)
        link = self._pointer("ftrace_ops_list")
        while (found := self._machine.read_u64(link)) != ops.address:
            link = found + ftrace_ops.offset("next")
        self._machine.write_u64(link, following)

    def set_filter(self, ops: FtraceOps) -> int:
        """Publish the filter of an ops again. Returns the old one, for ``restore_filter`` or ``free_later``; 0 if there
        is none. -ENOMEM.
        """
        if not self._live:
            return 0
        old, ops.filter_hash = ops.filter_hash, self._filter(ops)
        ftrace_ops.view(self._machine, ops.address).filter_hash = ops.filter_hash
        return old

    def restore_filter(self, ops: FtraceOps, old: int) -> None:
        """Restore the filter returned by ``set_filter``."""
        if old:
            new, ops.filter_hash = ops.filter_hash, old
            ftrace_ops.view(self._machine, ops.address).filter_hash = old
            self.free_later(new)

    def free_later(self, address: int) -> None:
        """Free a hash after a grace period; 0 is ignored."""
        if address:
            self._rcu.call(RcuFlavour.RCU_TASKS, lambda: self._slab.free(address))

    def go_live(self, direct: Mapping[int, int]) -> None:
        """Write all data, before the first site reaches the list function. With -ENOMEM nothing stays allocated."""
        if self._live:
            self._use += 1
            return
        made: list[FtraceOps] = []
        try:
            following = 0
            for ops in self.registered:
                made.append(ops)
                self._complete(ops)
                ftrace_ops.view(self._machine, ops.address).next = following
                following = ops.address
            self._write_direct(direct)
        except BaseException:
            self._forget(made)
            raise
        self._machine.write_u64(self._pointer("ftrace_ops_list"), following)
        self._machine.write_u64(self._pointer("direct_functions"), self._direct)
        self._live = True
        self._use += 1

    def retire(self) -> None:
        """Free all data after a grace period, as no site reaches the list function any more."""
        if self._live:
            use = self._use
            self._rcu.call(RcuFlavour.RCU_TASKS, lambda: self._retired(use, ()))

    # Direct callers -------------------------------------------------------------------------------------------------

    def set_direct(self, direct: Mapping[int, int], *, replaces: bool) -> None:
        """Publish ``direct_functions`` again. ``replaces``: an older one exists and is freed after a grace period.

        -ENOMEM.
        """
        old = 0
        if self._live:
            old = self._direct
            self._write_direct(direct)
            self._machine.write_u64(self._pointer("direct_functions"), self._direct)
        if old:
            self.free_later(old)
        elif replaces:
            self._rcu.call(RcuFlavour.RCU_TASKS, lambda: None)

    def _write_direct(self, direct: Mapping[int, int]) -> None:
        self._direct = write_hash(self._machine, self._slab, direct, "direct_functions")
        self._direct_entries = entries_of(self._direct, direct)

    def change_direct(self, entries: Mapping[int, int]) -> None:
        """Change the addresses of entries in place; look-ups return the old or the new one."""
        if self._live:
            offset = ftrace_func_entry.offset("direct")
            places = [self._direct_entries[ip] + offset for ip in entries]
            self._machine.write_each(places, [address.to_bytes(8, "little") for address in entries.values()])

    # ----------------------------------------------------------------------------------------------------------------

    def _complete(self, ops: FtraceOps) -> None:
        self.make(ops)
        if not ops.filter_hash:
            ops.filter_hash = self._filter(ops)
            ftrace_ops.view(self._machine, ops.address).filter_hash = ops.filter_hash

    def _filter(self, ops: FtraceOps) -> int:
        entries = dict.fromkeys(sorted(ops.filter), ops.direct_call)
        return write_hash(self._machine, self._slab, entries, f"filter_hash of {ops.name}")

    def _retired(self, use: int, released: Sequence[Lock]) -> None:
        """Called after the grace period. ``released``: locks that delayed it; their last holder may still be in the
        middle of a change.
        """
        if not self._live or use != self._use:
            return
        for lock in self._locks:
            if lock.held and (released or not lock.is_mine):
                lock.defer(lambda: self._retired(use, (*released, lock)))  # noqa: B023  # the loop ends here
                return
        held = [lock for lock in self._locks if lock.try_acquire()]
        try:
            self._live = False
            self._machine.write_u64(self._pointer("ftrace_ops_list"), 0)
            self._machine.write_u64(self._pointer("direct_functions"), 0)
            self._forget(self.registered)
            self._slab.free(self._direct)
            self._direct = 0
            self._direct_entries.clear()
        finally:
            for lock in reversed(held):
                lock.release()

    def _forget(self, some: Iterable[FtraceOps]) -> None:
        """Free the list's data of ops; one with code of its own keeps its struct."""
        for ops in some:
            if ops.filter_hash:
                self._slab.free(ops.filter_hash)
                ops.filter_hash = 0
            if ops.address and not ops.keeps_struct:
                self._slab.free(ops.address)
                ops.address = 0

    def _pointer(self, name: str) -> int:
        return self._kallsyms.address(name)
