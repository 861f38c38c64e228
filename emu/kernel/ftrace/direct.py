"""Direct callers: sites that call, or jump to, an address without ftrace's stubs between (kernel/trace/ftrace.c).

``register_ftrace_direct`` and its like have one ops for each address; ``update_ftrace_direct_add`` and its like one
ops for many sites, each with an address of its own.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from errno import EBUSY, EINVAL, ENOENT

from emu.kernel.errors import KernelError
from emu.kernel.ftrace.ops import FtraceOps, FtraceOpsFlag
from emu.kernel.ftrace.registration import FunctionTracer
from emu.kernel.process_context import PointKind

DIRECT_FLAGS = FtraceOpsFlag.DIRECT | FtraceOpsFlag.SAVE_REGS
"""``MULTI_FLAGS``: its callback writes to the saved registers."""


class Ftrace(FunctionTracer):
    """The patch sites of one kernel, their users and their direct callers."""

    # One address for all sites of an ops ----------------------------------------------------------------------------

    def register_ftrace_direct(self, ops: FtraceOps, address: int) -> None:
        """Let the sites in the filter of ``ops`` reach ``address``.

        -EINVAL where ``ops`` is in use or its filter is empty, -EBUSY where a site has a direct caller or a user that
        changes regs->ip, if that can't be shared, -EAGAIN where ``ops.ops_func`` wants to be asked again, -ENOMEM, and
        what patching raises; then everything is as it was.
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
                # 56b3c85e153b: entries that stayed behind made the next attempt fail with -EBUSY.
                ops.direct_call = 0
                self._remove_direct(new)
                raise

    def modify_ftrace_direct(self, ops: FtraceOps, address: int, *, lock_direct_mutex: bool = True) -> None:
        """Let the sites of ``ops`` reach another address; at any moment they reach the old one or the new one.

        -EINVAL where it is not a registered direct caller, -EAGAIN as for registering (3e9a18e1c3e9), -ENOMEM, and what
        patching raises; then the old address stays. ``lock_direct_mutex``: False where it is held (``_nolock``).
        """
        self._check_direct(ops)
        with self._direct_locked(lock_direct_mutex):
            self._modify(ops, dict.fromkeys(ops.filter, address), address)

    def unregister_ftrace_direct(self, ops: FtraceOps, address: int, *, free_filters: bool = False) -> None:
        """Take the direct caller off its sites. -EINVAL where it is not registered, or with another address."""
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
        """Let ``ops`` have exactly these sites, with the address that it has (the tracing-multi series of 2025).

        -EINVAL where it is not a registered direct caller, -ENOENT for no site, -EBUSY where a new one has a direct
        caller, -ENOMEM, and what patching raises; then its sites are as before. ``keeps_on_failure``: as it was posted,
        with the new sites still in ``direct_functions`` where patching failed.
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

    # An address for each site ---------------------------------------------------------------------------------------

    def update_ftrace_direct_add(self, ops: FtraceOps, entries: Mapping[int, int]) -> None:
        """Let each site of ``entries`` reach its address. The first call registers ``ops``.

        -EINVAL for nothing to add, for no site, where a site has a direct caller, and where ``ops`` is somebody else's;
        -EBUSY, -EAGAIN, -ENOMEM as for ``register_ftrace_direct``. Everything is as it was then.
        """
        if not entries:
            raise KernelError(EINVAL, f"no site to add to {ops.name}")
        with self.direct_mutex:
            taken = entries.keys() & self.direct_functions.keys()
            if taken:
                raise KernelError(EINVAL, f"the site at {min(taken):#x} has a direct caller already")
            missing = entries.keys() - self.records.keys()
            if missing:
                raise KernelError(EINVAL, f"{min(missing):#x} is no ftrace location")
            first = not ops.filter
            usable = not (ops.func or ops.trampoline or ops.enabled) if first else ops.is_direct
            if not usable:
                raise KernelError(EINVAL, f"{ops.name} is no direct caller of this kind")
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
        """Take the sites of ``entries`` off ``ops``, which must reach just these addresses; the last one unregisters
        it.

        -EINVAL for nothing to take off, where ``ops`` is not registered, and where a site reaches another address or
        none; -ENOMEM, and what patching raises. Everything is as it was then.
        """
        self._check_direct(ops)
        if not entries:
            raise KernelError(EINVAL, f"no site to take off {ops.name}")
        with self.direct_mutex:
            # No other order than the dictionary's own: this is once for every function of a kernel.
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
            # Only now: a call that is on its way through the list function still looks its address up.
            self._unpublish({ip: address for ip, address in self.direct_functions.items() if ip not in entries})

    def update_ftrace_direct_mod(
        self, ops: FtraceOps, entries: Mapping[int, int], *, lock_direct_mutex: bool = True
    ) -> None:
        """Let the sites of ``entries`` reach other addresses; sites that ``ops`` does not have are passed over.

        -EINVAL for an empty ``entries``, and where ``ops`` is not registered; -EAGAIN, -ENOMEM and what patching
        raises: the old addresses stay. ``lock_direct_mutex``: False where it is held.
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
        """Change addresses of sites of ``ops``. A second ops that does nothing makes them go through
        ftrace_regs_caller meanwhile, so that no call goes without a direct caller.
        """
        before = ({ip: self.direct_functions[ip] for ip in entries}, ops.direct_call)
        # Needs SAVE_REGS no more than the kernel's: the direct caller has it.
        stub = FtraceOps(f"stub beside {ops.name}", "ftrace_stub", FtraceOpsFlag.STUB, filter=set(entries))
        self._register(stub)
        try:
            self._negotiate_ipmodify(ops, entries)
            self._assign(ops, entries, direct_call)
            try:
                self._unregister(stub)
            except BaseException:
                # 2a2d8c51defb: the new address stayed where modifying had failed.
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
        """A new ``direct_functions``; the old one is freed by call_rcu_tasks()."""
        self._guest.set_direct(new, replaces=bool(self.direct_functions))
        self.direct_functions = new

    def _unpublish(self, new: dict[int, int]) -> None:
        """The same with fewer entries. Where there is no memory for it, entries of sites without a direct caller
        stay: nobody looks them up.
        """
        with suppress(KernelError):
            self._guest.set_direct(new, replaces=bool(self.direct_functions))
        self.direct_functions = new

    def _add_direct(self, entries: Mapping[int, int]) -> None:
        """A copy with more entries takes the place of ``direct_functions`` (d05cb470663a: not edited in use)."""
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
