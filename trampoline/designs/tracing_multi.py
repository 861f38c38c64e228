"""The tracing-multi series of 2025 as it was posted, in process context: ``bpf_gtrampoline_link_prog`` and its like.

Sites of traced functions call a global caller, kernel text that is never freed; it finds a function's programs through
the function's metadata. Programs of plain links have trampolines of their own, on other functions.
"""

from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from errno import EBUSY, EEXIST, EINVAL, EOPNOTSUPP

from emu.kernel.errors import KernelError
from emu.kernel.ftrace.ops import FtraceOps, FtraceOpsCmd
from emu.kernel.kernel import Kernel
from emu.kernel.process_context import Lock
from emu.kernel.text.entry import SITE_SIZE
from trampoline.bpf.boot import Boot
from trampoline.bpf.errors import Oops
from trampoline.bpf.prog import BpfProg, BpfPrograms
from trampoline.designs import tracing_multi_v1_caller, tracing_multi_v2_caller
from trampoline.designs.design import Design, DesignInfo, TrampolineDesign
from trampoline.designs.function_images import FunctionImages
from trampoline.designs.traits import KEPT_TABLE, AfterSleep, Order, Traits
from trampoline.kfunc_md.defects import TracingMultiDefects
from trampoline.kfunc_md.kfunc_mds import KfuncMds, MdEntry
from trampoline.kfunc_md.structs import asm_symbols
from trampoline.phases import checked_routines
from trampoline.rules import TrampolineRules
from trampoline.tramp_links import TrampProgType, kind_of
from trampoline.update.bpf_trampoline import Trampolines
from trampoline.update.ftrace_sites import OpsEach
from trampoline.update.target import LinkEntry, TraceTarget

MAX_ARGS = tracing_multi_v2_caller.MAX_ARGS
"""Argument slots of a function that a multi link may be on."""
_ALIGNMENT = 16


@dataclass(slots=True)
class _GlobalTrampoline:
    """``struct bpf_global_trampoline``: a global caller, and the ftrace_ops of the sites that call it."""

    image: int
    ops: FtraceOps


class TracingMultiDesign:
    """The posted series. ``callers``: its stubs, one for each argument count or one for all, none where it can't
    have them.
    """

    def __init__(
        self,
        name: str,
        kernel: Kernel,
        trampolines: Trampolines,
        mds: KfuncMds,
        callers: Sequence[int],
    ) -> None:
        self.name, self.trampolines, self.mds = name, trampolines, mds
        self._kernel, self._defects = kernel, mds.defects
        self._plain = TrampolineDesign(name, trampolines)
        ops_func = _confused if self._defects.confused_ops_func else None
        self._global = [
            _GlobalTrampoline(at, FtraceOps(f"bpf_global_trampoline at {at:#x}", ops_func=ops_func)) for at in callers
        ]
        self._targets: dict[int, TraceTarget] = {}
        self._lock = Lock(kernel.process, "global_tr_lock")

    def check(self, target: TraceTarget, prog: BpfProg) -> None:
        """See Design. For a multi link -EINVAL for fsession programs; -EOPNOTSUPP for more than 6 argument slots, for a
        BPF program as target, and where there is no stub or no look-up that finds the function.
        """
        if not prog.attach_type.is_multi:
            self._plain.check(target, prog)
            return
        if kind_of(prog.attach_type, target) is TrampProgType.FSESSION:
            raise KernelError(EINVAL, f"{self.name} has no fsession programs")
        if not self._global:
            raise KernelError(EOPNOTSUPP, "functions of this kernel have no padding")
        slots = target.nr_regs
        if slots > MAX_ARGS:
            raise KernelError(EOPNOTSUPP, f"{target.name} needs {slots} argument slots; at most {MAX_ARGS}")
        if self._kernel.function_at(target.address) is None:
            raise KernelError(EOPNOTSUPP, f"{target.name} is a BPF program")
        returns_to = target.address + (target.site_offset or 0) + SITE_SIZE
        if not self._defects.null_result and returns_to & -_ALIGNMENT != target.address:
            raise KernelError(EOPNOTSUPP, f"{target.name} is not {_ALIGNMENT}-byte aligned")

    def attach(self, entry: LinkEntry) -> None:
        """See Design. -EEXIST where the function has a multi link."""
        with self._lock:
            self._refuse_site(entry.target)
            self._plain.attach(entry)

    def detach(self, entry: LinkEntry) -> None:
        """See Design."""
        self._plain.detach(entry)

    def attach_multi(self, entries: Sequence[LinkEntry], progress: Callable[[], object]) -> None:
        """See Design. -EEXIST where a function has the program or a plain link; -EOPNOTSUPP, -ENOMEM and what patching
        raises. Defects leave behind what they say.
        """
        if not entries:
            return
        with self._lock:
            self._attach_multi(entries)
            for _ in entries:
                progress()

    def detach_multi(self, entries: Sequence[LinkEntry], progress: Callable[[], object]) -> None:
        """See Design."""
        if not entries:
            return
        with self._lock:
            self._detach_multi(entries)
            for _ in entries:
                progress()

    def time_programs(self, enabled: bool) -> None:
        """See Design. The callers' own statistics hang on the static key."""
        self._plain.time_programs(enabled)

    # Multi links ----------------------------------------------------------------------------------------------------

    def _attach_multi(self, entries: Sequence[LinkEntry]) -> None:
        """``bpf_gtrampoline_link_prog``."""
        prog, kind = _program(entries)
        functions = [entry.target.address for entry in entries]
        for entry in entries:
            plain = self.trampolines.find(entry.target)
            if plain is not None and plain.links:
                # The cover letter's answer; register_ftrace_direct() would say -EBUSY.
                raise KernelError(EEXIST, f"{entry.target.name} has a trampoline of its own")
        with ExitStack() as undo:
            self._targets.update((entry.target.address, entry.target) for entry in entries)
            undo.callback(self._forget, functions)
            counts = self.mds.counts(functions)
            self.mds.link_entries(_md_entries(entries), prog.address, kind, refilter=self._update_all)
            if not all(counts.get(function) for function in functions):
                try:
                    self._update_all()
                except BaseException:
                    with suppress(KernelError):
                        self.mds.unlink_entries(_md_entries(entries), prog.address, kind)
                    with suppress(KernelError):
                        self._update_all()
                    raise
            undo.pop_all()

    def _detach_multi(self, entries: Sequence[LinkEntry]) -> None:
        """``bpf_gtrampoline_unlink_prog``. The repaired series first takes the sites off that will have no program."""
        prog, kind = _program(entries)
        functions = [entry.target.address for entry in entries]
        if not self._defects.unlink_stops:
            last = {function for function, count in self.mds.counts(functions).items() if count == 1}
            if last:
                try:
                    self._update_all(without=last)
                except BaseException:
                    with suppress(KernelError):
                        self._update_all()
                    raise
        try:
            self.mds.unlink_entries(_md_entries(entries), prog.address, kind, refilter=self._update_all)
        finally:
            self._forget(functions)

    def _update_all(self, without: Collection[int] = ()) -> None:
        """``bpf_gtrampoline_update_all``: let the sites of functions with programs call their stubs, and no others."""
        ips: dict[int, set[int]] = {tramp.image: set() for tramp in self._global}
        location = self._kernel.ftrace.ftrace_location
        for function, count in self.mds.counts(self._targets).items():
            if count and function not in without:
                target = self._targets[function]
                ips[self._caller(target).image].add(location(function))
        for tramp in self._global:
            self._update(tramp, ips[tramp.image])

    def _update(self, tramp: _GlobalTrampoline, ips: set[int]) -> None:
        """``bpf_gtrampoline_update``."""
        ftrace, ops = self._kernel.ftrace, tramp.ops
        if not ips:
            if ops.enabled:
                ftrace.unregister_ftrace_direct(ops, tramp.image, free_filters=True)
        elif ops.enabled:
            ftrace.reset_ftrace_direct_ips(ops, ips, keeps_on_failure=self._defects.failed_reset_keeps)
        else:
            ftrace.ftrace_set_filter_ips(ops, ips, reset=True)
            try:
                ftrace.register_ftrace_direct(ops, tramp.image)
            except BaseException:
                ops.filter = set()
                raise

    def _caller(self, target: TraceTarget) -> _GlobalTrampoline:
        return self._global[target.nr_regs if len(self._global) > 1 else 0]

    def _forget(self, functions: Sequence[int]) -> None:
        found = self.mds.backend.find_all(functions)
        for function in functions:
            if not found[function]:
                self._targets.pop(function, None)

    def _refuse_site(self, target: TraceTarget) -> None:
        site = self._kernel.ftrace.ftrace_location(target.address)
        if site and any(site in tramp.ops.filter for tramp in self._global):
            raise KernelError(EEXIST, f"{target.name} has a multi link")


_TRAITS = Traits(
    order=Order.OLDEST_FIRST,
    after_sleep=AfterSleep.CURRENT,
    max_slots=MAX_ARGS,
    sessions=False,
    mixes_plain_and_multi=False,
    shares_sites=False,
    program_twice=EEXIST,
    function_twice=EEXIST,
    site_taken=EBUSY,
    accounts_calls=False,
    keeps=KEPT_TABLE,
    plain=Traits(),
)


def tracing_multi_v2(name: str, defects: TracingMultiDefects | None = None) -> DesignInfo:
    """The second version: C callers, hash. As posted, unless ``defects`` says which of its defects stay."""
    kept = TracingMultiDefects.as_posted() if defects is None else defects

    def make(kernel: Kernel, rules: TrampolineRules, boot: Boot, programs: BpfPrograms, metadata: str | None) -> Design:
        mds = KfuncMds(kernel, "hash", defects=kept, max_links=rules.max_links)
        routines = tracing_multi_v2_caller.routines(kernel.config, mds.backend, clobbers=not kept.no_clobbers)
        kernel.add_routines(*checked_routines(routines), constants={**asm_symbols(), **mds.backend.symbols})
        stubs = [kernel.kallsyms.address(tracing_multi_v2_caller.stub_name(count)) for count in range(MAX_ARGS + 1)]
        return TracingMultiDesign(name, kernel, _plain_trampolines(kernel, rules, boot), mds, stubs)

    sound = kept == TracingMultiDefects()
    return DesignInfo(name, make, links="multi", traits=_TRAITS, metadata=(), looks_up="hash", sound=sound)


def tracing_multi_v1(name: str) -> DesignInfo:
    """The first version: one caller in assembly, function padding; with none of the later version's defects."""

    def make(kernel: Kernel, rules: TrampolineRules, boot: Boot, programs: BpfPrograms, metadata: str | None) -> Design:
        mds = KfuncMds(kernel, "padding", max_links=rules.max_links)
        stubs: list[int] = []
        # Without padding there is no look-up to make.
        with suppress(KernelError):
            routines = tracing_multi_v1_caller.routines(kernel.config, mds.backend)
            kernel.add_routines(*checked_routines(routines), constants=asm_symbols())
            stubs = [kernel.kallsyms.address(tracing_multi_v1_caller.NAME)]
        return TracingMultiDesign(name, kernel, _plain_trampolines(kernel, rules, boot), mds, stubs)

    traits = replace(_TRAITS, needs_padding=True)
    return DesignInfo(name, make, links="multi", traits=traits, metadata=(), looks_up="padding")


def _plain_trampolines(kernel: Kernel, rules: TrampolineRules, boot: Boot) -> Trampolines:
    return Trampolines(kernel, rules, boot, OpsEach(kernel), FunctionImages(kernel, rules))


def _program(entries: Sequence[LinkEntry]) -> tuple[BpfProg, TrampProgType]:
    first = entries[0]
    return first.link.prog, kind_of(first.link.prog.attach_type, first.target)


def _md_entries(entries: Sequence[LinkEntry]) -> list[MdEntry]:
    return [MdEntry(entry.target.address, entry.target.nr_regs, entry.link.cookie) for entry in entries]


def _confused(ops: FtraceOps, ip: int, cmd: FtraceOpsCmd) -> None:
    """``bpf_tramp_ftrace_ops_func`` on a global trampoline's ops (TracingMultiDefects.confused_ops_func)."""
    raise Oops(f"{cmd.name} for {ip:#x}: bpf_tramp_ftrace_ops_func takes the {ops.name} for a struct bpf_trampoline")


TRACING_MULTI_V2 = tracing_multi_v2("tracing-multi-v2")
TRACING_MULTI_V2_FIXED = tracing_multi_v2("tracing-multi-v2-fixed", TracingMultiDefects())
TRACING_MULTI_V1 = tracing_multi_v1("tracing-multi-v1")
