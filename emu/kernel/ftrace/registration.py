"""Registration of users of ftrace: ``register_ftrace_function``, ``ftrace_set_filter_ips`` (kernel/trace/ftrace.c)."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from errno import EBUSY, EINVAL, ENOENT

from emu.kernel.errors import KernelError
from emu.kernel.ftrace.guest_data import GuestOps
from emu.kernel.ftrace.ops import FtraceOps, FtraceOpsCmd, FtraceOpsFlag
from emu.kernel.ftrace.records import DynFtrace, FtraceRecords
from emu.kernel.ftrace.trampolines import FtraceTrampolines
from emu.kernel.mm.execmem import ExecMem
from emu.kernel.mm.slab import Slab
from emu.kernel.process_context import Lock, PointKind, ProcessContext
from emu.kernel.rcu import Rcu, RcuFlavour
from emu.kernel.structs import pt_regs
from emu.kernel.text.kallsyms import Kallsyms
from emu.kernel.text.text_poke import TextPoke
from emu.machine.machine import Machine
from emu.machine.vcpu import Vcpu


class FunctionTracer:
    """The users of one kernel's patch sites.

    Locks are taken in this order: a trampoline's, ``direct_mutex``, ``ftrace_lock``.
    """

    def __init__(
        self,
        machine: Machine,
        process: ProcessContext,
        kallsyms: Kallsyms,
        text_poke: TextPoke,
        *,
        slab: Slab,
        execmem: ExecMem,
        rcu: Rcu,
    ) -> None:
        self._machine, self._process, self._kallsyms, self._rcu = machine, process, kallsyms, rcu
        self._sites = FtraceRecords(machine, process, kallsyms, text_poke)
        self._trampolines = FtraceTrampolines(execmem, kallsyms)
        self.direct_mutex = Lock(process, "direct_mutex")
        self.ftrace_lock = Lock(process, "ftrace_lock")
        self._guest = GuestOps(machine, slab, rcu, kallsyms, (self.direct_mutex, self.ftrace_lock))
        self.direct_functions: dict[int, int] = {}
        """Direct address of each site, with JMP_FLAG if by jmp."""
        self._ipmodify_users = 0

    # Sites ----------------------------------------------------------------------------------------------------------

    @property
    def records(self) -> dict[int, DynFtrace]:
        """Patch sites by address."""
        return self._sites.records

    @property
    def updates(self) -> int:
        """Number of patched batches."""
        return self._sites.updates

    @property
    def ops(self) -> tuple[FtraceOps, ...]:
        """The registered users, oldest first."""
        return tuple(self._guest.registered)

    def use_stubs(self, *, caller: int, regs_caller: int) -> None:
        """Make sites with several users call these addresses, which lead to ftrace_caller and ftrace_regs_caller."""
        self._sites.ftrace_caller, self._sites.ftrace_regs_caller = caller, regs_caller

    def _use_default_stubs(self) -> None:
        """Look up the stubs once the kernel's text is loaded."""
        if not self._sites.ftrace_caller:
            find = self._kallsyms.address
            self.use_stubs(caller=find("ftrace_caller"), regs_caller=find("ftrace_regs_caller"))

    def add_site(self, ip: int, module: str = "") -> DynFtrace:
        """Register a nop5 in the text as a patch site."""
        return self._sites.add_site(ip, module)

    def remove_sites(self, module: str) -> None:
        """Remove the sites of an unloaded module, from filters too (``ftrace_release_mod``)."""
        gone = {ip for ip, record in self.records.items() if record.module == module}
        for ops in self.ops:
            if not gone.isdisjoint(ops.sites):
                ops.sites -= gone
                ops.filter -= gone
        for ip in gone:
            self.direct_functions.pop(ip, None)
            del self.records[ip]

    def ftrace_location(self, address: int) -> int:
        """The site at an address, or of the function that begins there; 0 if there is none."""
        return self._sites.ftrace_location(address)

    # Filters --------------------------------------------------------------------------------------------------------

    def ftrace_set_filter_ip(self, ops: FtraceOps, ip: int, *, remove: bool = False, reset: bool = False) -> None:
        """Add a site to the filter of ``ops``, or remove it; see ``ftrace_set_filter_ips``."""
        self.ftrace_set_filter_ips(ops, (ip,), remove=remove, reset=reset)

    def ftrace_set_filter_ips(
        self, ops: FtraceOps, ips: Iterable[int], *, remove: bool = False, reset: bool = False
    ) -> None:
        """Add sites to the filter of ``ops``, or remove them; ``reset`` empties it first. The sites of a registered ops
        are patched.

        -EINVAL for an address that is no site, -ENOENT for removing a site that is not in the filter, -ENOMEM, and
        errors of patching; then the filter is unchanged.
        """
        wanted = set() if reset else set(ops.filter)
        for ip in ips:
            location = self.ftrace_location(ip)
            if not location:
                raise KernelError(EINVAL, f"{ip:#x} is not an ftrace location")
            if not remove:
                wanted.add(location)
            elif location in wanted:
                wanted.remove(location)
            else:
                raise KernelError(ENOENT, f"{location:#x} is not in the filter of {ops.name}")
        self._process.point(PointKind.ALLOC, f"filter hash of {ops.name}")
        with self.ftrace_lock:
            self._move_filter(ops, wanted, self.direct_functions)

    # Users ----------------------------------------------------------------------------------------------------------

    def register_ftrace_function(self, ops: FtraceOps) -> None:
        """Call ``ops.func`` at the sites in its filter, or at all sites if that is empty.

        -EINVAL without a func, -EBUSY if it is registered, or if an IPMODIFY user meets another one or a direct caller
        that can't share; -EAGAIN if that is busy; -ENOMEM, and errors of patching. Nothing is changed then.
        """
        if ops.func is None or ops.is_direct:
            raise KernelError(EINVAL, f"{ops.name} has no callback")
        with self.direct_mutex:
            asked = self._ask_direct_callers(ops)
            try:
                self._register(ops)
            except BaseException:
                self._dismiss_direct_callers(ops, asked)
                raise

    def unregister_ftrace_function(self, ops: FtraceOps) -> None:
        """Stop calling it; on return no CPU is in its callback (0e792b89e680). -EBUSY if it is not registered.
        """
        with self.direct_mutex:
            sites = sorted(ops.sites)
            with self.ftrace_lock:
                free = self._shutdown(ops)
                try:
                    self._rcu.synchronize(RcuFlavour.RCU_TASKS)
                except BaseException:
                    self._free_later(free)
                    raise
                if free is not None:
                    free()
            self._dismiss_direct_callers(ops, sites)

    def _register(self, ops: FtraceOps) -> None:
        """``register_ftrace_function_nolock``."""
        with self.ftrace_lock:
            self._startup(ops)

    def _startup(self, ops: FtraceOps) -> None:
        """``ftrace_startup``: negotiate, allocate the ops' resources, add it to the list, patch its sites."""
        if ops.enabled:
            raise KernelError(EBUSY, f"{ops.name} is registered already")
        sites = set(ops.filter) if ops.filter or ops.is_direct else set(self.records)
        self._negotiate_ipmodify(ops, sites)
        with self._callback(ops):
            self._guest.add(ops)
            ops.flags |= FtraceOpsFlag.ENABLED
            self._guest.refresh(ops)
            try:
                self._update(sites, self.direct_functions, enter=ops)
            except BaseException:
                ops.flags &= ~FtraceOpsFlag.ENABLED
                self._guest.remove(ops)
                raise
            ops.sites = sites
        self._ipmodify_users += bool(ops.flags & FtraceOpsFlag.IPMODIFY)

    @contextmanager
    def _callback(self, ops: FtraceOps) -> Iterator[None]:
        """Context with an ops' callback and resources allocated; freed again if the block fails."""
        if callable(ops.func):
            ops.callback = self._machine.host_call(f"callback of {ops.name}", self._host_call(ops))
        elif isinstance(ops.func, str):
            ops.callback = self._kallsyms.address(ops.func)
        else:
            ops.callback = ops.func or 0
        try:
            if not ops.trampoline and not ops.flags & FtraceOpsFlag.STUB:
                self._guest.make(ops)
                recursion = ops.flags & FtraceOpsFlag.RECURSION
                assist = self._kallsyms.address("ftrace_ops_assist_func")
                self._trampolines.create(ops, assist if recursion else ops.callback)
            yield
        except BaseException:
            self._free_later(self._forget(ops))
            raise

    def _forget(self, ops: FtraceOps) -> Callable[[], None] | None:
        """Separate an ops from its resources; returns the function that frees them, None without any."""
        callback, trampoline, structs = ops.callback, ops.trampoline, self._guest.detach(ops)
        host, private = callable(ops.func) and bool(callback), bool(ops.flags & FtraceOpsFlag.ALLOC_TRAMP)
        ops.callback = 0
        if private:
            ops.trampoline, ops.flags = 0, ops.flags & ~FtraceOpsFlag.ALLOC_TRAMP
        if not (structs or host or private):
            return None

        def free() -> None:
            if structs is not None:
                structs()
            if private:
                self._trampolines.free(trampoline)
            if host:
                self._machine.remove_host_call(callback)

        return free

    def _free_later(self, free: Callable[[], None] | None) -> None:
        if free is not None:
            self._rcu.call(RcuFlavour.RCU_TASKS, free)

    def _host_call(self, ops: FtraceOps) -> Callable[[Vcpu], None]:
        def call(vcpu: Vcpu) -> None:
            ip, parent, _, regs = vcpu.args(4)
            assert callable(ops.func)
            ops.func(ip, parent, ops, pt_regs.view(self._machine, regs))

        return call

    def _shutdown(self, ops: FtraceOps) -> Callable[[], None] | None:
        """``ftrace_shutdown``: patch its sites and remove it from the list; returns the function that frees its
        resources (None without any), to be called once no CPU can be in its code.
        """
        if not ops.enabled:
            raise KernelError(EBUSY, f"{ops.name} is not registered")
        self._update(ops.sites, self.direct_functions, leave=ops)
        self._guest.remove(ops)
        self._ipmodify_users -= bool(ops.flags & FtraceOpsFlag.IPMODIFY)
        ops.flags &= ~FtraceOpsFlag.ENABLED
        ops.sites = set()
        return self._forget(ops)

    # Patching -------------------------------------------------------------------------------------------------------

    def _update(
        self,
        ips: Collection[int],
        direct: Mapping[int, int],
        *,
        enter: FtraceOps | None = None,
        leave: FtraceOps | None = None,
    ) -> None:
        """Let an ops enter or leave sites and patch them; on failure nothing is changed."""
        sites = self._sites
        if not ips:
            return
        self._use_default_stubs()
        listed = sites.listed
        change = sites.retarget(ips, direct, enter=enter, leave=leave)
        shares = False
        try:
            if sites.reaches_list(change):
                self._guest.go_live(direct)
                shares = True
            sites.write(change)
        except BaseException:
            change.undo()
            raise
        finally:
            if not sites.listed and (listed or shares):
                self._guest.retire()

    def _move_filter(self, ops: FtraceOps, wanted: set[int], direct: Mapping[int, int]) -> None:
        """``ftrace_hash_move_and_update_ops``: publish the new filter, then patch the sites that differ."""
        old, before = ops.filter, ops.sites
        ops.filter = wanted
        if not ops.enabled:
            return
        sites = set(wanted) if wanted or ops.is_direct else set(self.records)
        entering, leaving = sites - before, before - sites
        replaced = 0
        try:
            self._negotiate_ipmodify(ops, entering)
            replaced = self._guest.set_filter(ops)
            self._update(entering, direct, enter=ops)
            try:
                self._update(leaving, direct, leave=ops)
            except BaseException:
                self._update(entering, direct, leave=ops)
                raise
        except BaseException:
            ops.filter = old
            self._guest.restore_filter(ops, replaced)
            raise
        self._guest.free_later(replaced)
        ops.sites = sites

    # IPMODIFY -------------------------------------------------------------------------------------------------------

    def _negotiate_ipmodify(self, ops: FtraceOps, ips: Iterable[int]) -> None:
        """``__ftrace_hash_update_ipmodify``: one IPMODIFY user per site; a direct caller that joins one must agree to
        share.
        """
        modifies = bool(ops.flags & FtraceOpsFlag.IPMODIFY)
        if modifies and not ops.filter:
            # Sharing is for single addresses, not for all functions.
            raise KernelError(EINVAL, f"{ops.name} changes regs->ip and has no filter")
        if not (modifies or ops.is_direct):
            return
        if not self._ipmodify_users:
            return
        for ip in sorted(ips):
            record = self.records[ip]
            if not record.has_ipmodify:
                continue
            if modifies or ops.ops_func is None:
                raise KernelError(EBUSY, f"the site at {ip:#x} has a user that changes regs->ip")
            ops.ops_func(ops, ip, FtraceOpsCmd.ENABLE_SHARE_IPMODIFY_SELF)

    def _ask_direct_callers(self, ops: FtraceOps) -> list[int]:
        """``prepare_direct_functions_for_ipmodify``: the sites whose direct callers agreed to share."""
        asked: list[int] = []
        if not ops.flags & FtraceOpsFlag.IPMODIFY:
            return asked
        for ip in sorted(ops.filter):
            with self.ftrace_lock:
                direct = self._direct_caller(ip)
            if direct is None:
                continue
            if direct.ops_func is None:
                self._dismiss_direct_callers(ops, asked)
                raise KernelError(EBUSY, f"the direct caller at {ip:#x} can't share its site")
            try:
                direct.ops_func(direct, ip, FtraceOpsCmd.ENABLE_SHARE_IPMODIFY_PEER)
            except BaseException:
                self._dismiss_direct_callers(ops, asked)
                raise
            asked.append(ip)
        return asked

    def _dismiss_direct_callers(self, ops: FtraceOps, ips: Iterable[int]) -> None:
        """``cleanup_direct_functions_after_ipmodify``: their sites are no longer shared."""
        if not ops.flags & FtraceOpsFlag.IPMODIFY:
            return
        for ip in ips:
            with self.ftrace_lock:
                direct = self._direct_caller(ip)
            if direct is not None and direct.ops_func is not None:
                # The kernel ignores the result: continued sharing is harmless.
                with suppress(KernelError):
                    direct.ops_func(direct, ip, FtraceOpsCmd.DISABLE_SHARE_IPMODIFY_PEER)

    def _direct_caller(self, ip: int) -> FtraceOps | None:
        record = self.records.get(ip)
        return next((ops for ops in record.users if ops.is_direct), None) if record else None
