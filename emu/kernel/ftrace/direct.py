"""Direct callers: sites that call, or jump to, an address without ftrace's stubs in between (kernel/trace/ftrace.c).

``register_ftrace_direct`` and similar functions have one ops for each address; ``update_ftrace_direct_add`` and similar
ones have one ops for many sites, each with its own address.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from errno import EBUSY, EINVAL, ENOENT

from emu.kernel.errors import KernelError
from emu.kernel.ftrace.ops import FtraceOps, FtraceOpsFlag
from emu.kernel.ftrace.registration import FunctionTracer
from emu.kernel.process_context import PointKind

DIRECT_FLAGS = FtraceOpsFlag.DIRECT | FtraceOpsFlag.SAVE_REGS
"""``MULTI_FLAGS``: SAVE_REGS, as its callback writes to the saved registers."""


class Ftrace(FunctionTracer):
    """The patch sites of one kernel, their users and their direct callers."""

    # One address for all sites of an ops ----------------------------------------------------------------------------

    def register_ftrace_direct(self, ops: FtraceOps, address: int) -> None:
        """Make the sites in the filter of ``ops`` reach the guest address ``address`` (``register_ftrace_direct()``).

        -EINVAL if ``ops`` is in use or its filter is empty, -EBUSY if a site has a direct caller, or a user that
        changes regs->ip and can't share, -EAGAIN if ``ops.ops_func`` asks for a retry, -ENOMEM, and errors of patching;
        nothing is changed then.
        """
        if ops.func or ops.trampoline or ops.direct_call or ops.enabled or not ops.filter:
            raise KernelError(EINVAL, f"{ops.name} can't be registered: in use, or no site in its filter")
        with self.direct_mutex:
            for ip in sorted(ops.filter):
                if ip in self.direct_functions:
                    raise KernelError(EBUSY, f"the site at {ip:#x} has a direct caller already")
            self._process.point(PointKind.ALLOC, f"direct_functions with {ops.name}")
            new = dict.fromkeys(ops.filter, address)
            self._add_direct(new)
            ops.direct_call = address
            try:
                self._register_direct(ops, "call_direct_funcs")
            except BaseException:
                # 56b3c85e153b: entries that were left made the next attempt fail with -EBUSY.
                ops.direct_call = 0
                self._remove_direct(new)
                raise

    def modify_ftrace_direct(self, ops: FtraceOps, address: int, *, lock_direct_mutex: bool = True) -> None:
        """Make the sites of ``ops`` reach another address; at any time they reach the old or the new one.

        -EINVAL if it is not a registered direct caller, -EAGAIN as for registering (3e9a18e1c3e9), -ENOMEM, and errors
        of patching; then the old address stays. ``lock_direct_mutex``: False if the caller holds it (``_nolock``).
        """
        self._check_direct(ops)
        with self._direct_locked(lock_direct_mutex):
            self._modify(ops, dict.fromkeys(ops.filter, address), address)

    def unregister_ftrace_direct(self, ops: FtraceOps, address: int, *, free_filters: bool = False) -> None:
        """Remove the direct caller from its sites. -EINVAL if it is not registered, or with another address."""
        self._check_direct(ops)
        if ops.direct_call != address:
            raise KernelError(EINVAL, f"{ops.name} is not registered with {address:#x}")
        with self.direct_mutex:
            self._unregister_direct(ops)
            self._remove_direct(ops.filter)
            ops.direct_call = 0
            if free_filters:
                ops.filter = set()

    def reset_ftrace_direct_ips(
        self, ops: FtraceOps, ips: Iterable[int], *, keeps_on_failure: bool = False
    ) -> None:
        """Give ``ops`` exactly these sites, with its current address (the tracing-multi series of 2025).

        -EINVAL if it is not a registered direct caller, -ENOENT for no site, -EBUSY if a new one has a direct caller,
        -ENOMEM, and errors of patching; then its sites are as before. ``keeps_on_failure``: as posted, the new sites
        stay in ``direct_functions`` if patching fails.
        """
        self._check_direct(ops)
        with self.direct_mutex:
            wanted = {self.ftrace_location(ip) for ip in ips}
            if 0 in wanted:
                raise KernelError(ENOENT, f"not all of the sites for {ops.name} are ftrace locations")
            new = dict.fromkeys(wanted - ops.filter, ops.direct_call)
            taken = new.keys() & self.direct_functions.keys()
            if taken:
                raise KernelError(EBUSY, f"the site at {min(taken):#x} has a direct caller already")
            self._process.point(PointKind.ALLOC, f"direct_functions with {ops.name}")
            gone = ops.filter - wanted
            self._add_direct(new)
            try:
                self.ftrace_set_filter_ips(ops, wanted, reset=True)
            except BaseException:
                if not keeps_on_failure:
                    self._remove_direct(new)
                raise
            self._remove_direct(gone)

    # One address for each site --------------------------------------------------------------------------------------

    def update_ftrace_direct_add(self, ops: FtraceOps, entries: Mapping[int, int]) -> None:
        """Make each site of ``entries`` reach its address. The first call registers ``ops``.

        -EINVAL for empty ``entries``, an address that is no site, a site with a direct caller, and an ``ops`` that is
        already used otherwise; -EBUSY, -EAGAIN, -ENOMEM as for ``register_ftrace_direct``. Nothing is changed then.
        """
        if not entries:
            raise KernelError(EINVAL, f"no site to add to {ops.name}")
        with self.direct_mutex:
            taken = entries.keys() & self.direct_functions.keys()
            if taken:
                raise KernelError(EINVAL, f"the site at {min(taken):#x} has a direct caller already")
            missing = entries.keys() - self.records.keys()
            if missing:
                raise KernelError(EINVAL, f"{min(missing):#x} is not an ftrace location")
            first = not ops.filter
            usable = not (ops.func or ops.trampoline or ops.enabled) if first else ops.is_direct
            if not usable:
                raise KernelError(EINVAL, f"{ops.name} is not a direct caller of this kind")
            self._process.point(PointKind.ALLOC, f"direct_functions with {ops.name}")
            old = self.direct_functions
            self._publish({**old, **entries})
            try:
                if first:
                    ops.filter = set(entries)
                    self._register_direct(ops, "call_direct_funcs_by_ip")
                else:
                    with self.ftrace_lock:
                        self._move_filter(ops, ops.filter | entries.keys(), self.direct_functions)
            except BaseException:
                if first:
                    ops.filter = set()
                self._unpublish(old)
                raise

    def update_ftrace_direct_del(self, ops: FtraceOps, entries: Mapping[int, int]) -> None:
        """Remove the sites of ``entries`` from ``ops``, which must reach just these addresses; removing the last one
        unregisters it.

        -EINVAL for empty ``entries``, if ``ops`` is not registered, and if a site reaches another address or none;
        -ENOMEM, and errors of patching. Nothing is changed then.
        """
        self._check_direct(ops)
        if not entries:
            raise KernelError(EINVAL, f"no site to take off {ops.name}")
        with self.direct_mutex:
            # In the dictionary's own order: this runs once for every function of a kernel.
            wrong = next((ip for ip in entries if self.direct_functions.get(ip) != entries[ip]), None)
            if wrong is None and not entries.keys() <= ops.filter:
                wrong = min(entries.keys() - ops.filter)
            if wrong is not None:
                raise KernelError(EINVAL, f"{ops.name} does not reach {entries[wrong]:#x} from {wrong:#x}")
            self._process.point(PointKind.ALLOC, f"direct_functions without {ops.name}")
            left = ops.filter - entries.keys()
            if left:
                with self.ftrace_lock:
                    self._move_filter(ops, left, self.direct_functions)
            else:
                self._unregister_direct(ops)
                ops.filter = set()
            # Only now: a call in flight in the list function still looks its address up.
            self._unpublish({ip: address for ip, address in self.direct_functions.items() if ip not in entries})

    def update_ftrace_direct_mod(
        self, ops: FtraceOps, entries: Mapping[int, int], *, lock_direct_mutex: bool = True
    ) -> None:
        """Make the sites of ``entries`` reach other addresses; sites that ``ops`` does not have are skipped.

        -EINVAL for empty ``entries``, and if ``ops`` is not registered; -EAGAIN, -ENOMEM and errors of patching: the
        old addresses stay. ``lock_direct_mutex``: False if the caller holds it.
        """
        self._check_direct(ops)
        if not entries:
            raise KernelError(EINVAL, f"no site of {ops.name} to change")
        with self._direct_locked(lock_direct_mutex):
            known = {ip: address for ip, address in entries.items() if ip in ops.filter}
            if known:
                self._modify(ops, known, 0)

    # ----------------------------------------------------------------------------------------------------------------

    @staticmethod
    def _check_direct(ops: FtraceOps) -> None:
        if not ops.is_direct or not ops.enabled:
            raise KernelError(EINVAL, f"{ops.name} is not a registered direct caller")

    @contextmanager
    def _direct_locked(self, lock: bool) -> Iterator[None]:
        if not lock:
            yield
            return
        with self.direct_mutex:
            yield

    def _register_direct(self, ops: FtraceOps, callback: str) -> None:
        self._use_default_stubs()
        ops.func, ops.trampoline = callback, self._sites.ftrace_regs_caller
        ops.flags, ops.is_direct = ops.flags | DIRECT_FLAGS, True
        try:
            self._register(ops)
        except BaseException:
            self._no_longer_direct(ops)
            raise

    def _unregister_direct(self, ops: FtraceOps) -> None:
        with self.ftrace_lock:
            self._free_later(self._shutdown(ops))
        self._no_longer_direct(ops)

    @staticmethod
    def _no_longer_direct(ops: FtraceOps) -> None:
        ops.func, ops.trampoline = None, 0
        ops.flags, ops.is_direct = ops.flags & ~DIRECT_FLAGS, False

    def _modify(self, ops: FtraceOps, entries: Mapping[int, int], direct_call: int) -> None:
        """Change addresses of sites of ``ops``. Meanwhile a second ops with a stub callback routes them through
        ftrace_regs_caller, so that no call misses its direct caller.
        """
        before = ({ip: self.direct_functions[ip] for ip in entries}, ops.direct_call)
        # Like the kernel's stub it needs no SAVE_REGS: the direct caller has it.
        stub = FtraceOps(f"stub beside {ops.name}", "ftrace_stub", FtraceOpsFlag.STUB, filter=set(entries))
        self._register(stub)
        try:
            self._negotiate_ipmodify(ops, entries)
            self._assign(ops, entries, direct_call)
            try:
                self._unregister(stub)
            except BaseException:
                # 2a2d8c51defb: the new address stayed after a failed modification.
                self._assign(ops, *before)
                raise
        except BaseException:
            self._unregister(stub)
            raise

    def _unregister(self, ops: FtraceOps) -> None:
        with self.ftrace_lock:
            self._free_later(self._shutdown(ops))

    def _assign(self, ops: FtraceOps, entries: Mapping[int, int], direct_call: int) -> None:
        self._guest.change_direct(entries)
        self.direct_functions.update(entries)
        ops.direct_call = direct_call
        self._guest.refresh(ops)

    def _publish(self, new: dict[int, int]) -> None:
        """Publish a new ``direct_functions``; the old one is freed by call_rcu_tasks()."""
        self._guest.set_direct(new, replaces=bool(self.direct_functions))
        self.direct_functions = new

    def _unpublish(self, new: dict[int, int]) -> None:
        """Publish fewer entries. Without memory for them, entries of sites without a direct caller stay: they are never
        looked up.
        """
        with suppress(KernelError):
            self._guest.set_direct(new, replaces=bool(self.direct_functions))
        self.direct_functions = new

    def _add_direct(self, entries: Mapping[int, int]) -> None:
        """Replace ``direct_functions`` by a copy with more entries (d05cb470663a: not edited in use)."""
        replaces = bool(self.direct_functions)
        self.direct_functions.update(entries)
        try:
            self._guest.set_direct(self.direct_functions, replaces=replaces)
        except BaseException:
            for ip in entries:
                del self.direct_functions[ip]
            raise

    def _remove_direct(self, ips: Iterable[int]) -> None:
        for ip in ips:
            del self.direct_functions[ip]
        # As in _unpublish().
        with suppress(KernelError):
            self._guest.set_direct(self.direct_functions, replaces=False)
