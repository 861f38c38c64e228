"""Attaching loaded programs: what a kernel checks when a link or perf event is made, and what links stand in the way.

``link_create``, ``bpf_tracing_prog_attach`` and ``bpf_raw_tp_link_attach`` (kernel/bpf/syscall.c),
``__bpf_trampoline_link_prog`` (kernel/bpf/trampoline.c), ``__perf_event_set_bpf_prog`` (kernel/events/core.c),
``trace_kprobe.c`` and ``bpf_kprobe_multi_link_attach`` (kernel/trace).
"""

from collections import Counter
from dataclasses import dataclass, field
from errno import E2BIG, EACCES, EADDRNOTAVAIL, EBADF, EBUSY, EFAULT, EILSEQ, EINVAL, ENOENT, EOPNOTSUPP, ESRCH
from typing import NoReturn, Protocol

from emu.kernel.text.entry import SITE_SIZE, EntryLayout
from trampoline.bpf.errors import ENOTSUPP
from trampoline.bpf.program import BpfProgram
from trampoline.bpf.uapi import AttachType, ProgType
from trampoline.bpf.verifier.attach_requests import (
    KprobeMulti,
    LinkCreate,
    PerfKprobe,
    PerfTracepoint,
    RawTracepointOpen,
    Request,
)
from trampoline.bpf.verifier.errors import Unsupported, VerifierError
from trampoline.bpf.verifier.kernel_view import KernelView
from trampoline.bpf.verifier.load.bpf_prog_load import VerifiedLoad
from trampoline.bpf.verifier.target.check_attach_target import ITER_PREFIX
from trampoline.bpf.verifier.target.tracepoints import arguments, event_size

_TRAMPOLINE_KINDS: dict[int, frozenset[int]] = {
    ProgType.TRACING: frozenset(
        {AttachType.TRACE_FENTRY, AttachType.TRACE_FEXIT, AttachType.MODIFY_RETURN, AttachType.TRACE_FSESSION}
    ),
    ProgType.LSM: frozenset({AttachType.LSM_MAC}),
    ProgType.EXT: frozenset({AttachType.NONE}),
}
"""Expected attach types that ``bpf_tracing_prog_attach`` takes."""
_MULTI_PROBES = (AttachType.TRACE_KPROBE_MULTI, AttachType.TRACE_KPROBE_SESSION)
_RAW_TYPES = (ProgType.RAW_TRACEPOINT, ProgType.RAW_TRACEPOINT_WRITABLE)

_Site = tuple[BpfProgram | None, int]
"""What a trampoline belongs to: the target program, None for the kernel, and the BTF id."""


class LinkRules(Protocol):
    """Values of a release's trampolines that limit its links."""

    @property
    def max_links(self) -> int:
        """BPF_MAX_TRAMP_LINKS: programs on one function, all kinds together."""
        ...

    @property
    def max_slots(self) -> int:
        """Argument slots at most."""
        ...

    @property
    def entry(self) -> EntryLayout:
        """Layout of a function's entry: the offset of its patch site."""
        ...


@dataclass(slots=True, eq=False)
class Links:
    """The links of one kernel. ``attach`` makes one, ``detach`` takes it away.

    ``rules``: those of its trampolines, ``trampoline.rules.TrampolineRules`` of the same release.
    """

    kernel: KernelView
    rules: LinkRules
    programs: Counter[_Site] = field(default_factory=Counter)
    """Programs on each function, of all kinds together; an fsession program counts twice."""
    extensions: set[_Site] = field(default_factory=set)
    """Functions of programs that are replaced."""

    def attach(self, loaded: VerifiedLoad, request: Request) -> None:
        """Attaches a program that this kernel has loaded. Raises VerifierError with the kernel's errno, Unsupported."""
        match request:
            case LinkCreate():
                self._create_link(loaded)
            case RawTracepointOpen(name):
                self._open_raw_tracepoint(loaded, name)
            case PerfTracepoint():
                self._set_on_tracepoint(loaded, request)
            case PerfKprobe():
                self._set_on_kprobe(loaded, request)
            case KprobeMulti(symbols):
                self._create_kprobe_multi(loaded, symbols)

    def detach(self, loaded: VerifiedLoad) -> None:
        """Takes away what ``attach`` made of a program."""
        if (site := _site(loaded)) is None:
            return
        if loaded.program.prog_type == ProgType.EXT:
            self.extensions.discard(site)
        else:
            self.programs[site] = max(0, self.programs[site] - _weight(loaded.program))

    # Links

    def _create_link(self, loaded: VerifiedLoad) -> None:
        program = loaded.program
        match program.prog_type:
            case ProgType.TRACING if program.attach == AttachType.TRACE_RAW_TP:
                self._register_raw(loaded, loaded.target.name if loaded.target else "")
            case ProgType.TRACING if program.attach == AttachType.TRACE_ITER:
                self._link_iterator(loaded)
            case ProgType.TRACING | ProgType.LSM if program.attach == AttachType.LSM_CGROUP:
                raise Unsupported("links on control groups")
            case ProgType.TRACING | ProgType.LSM | ProgType.EXT:
                self._attach_tracing(loaded)
            case ProgType.XDP | ProgType.SCHED_CLS | ProgType.NETFILTER | ProgType.SK_LOOKUP | ProgType.STRUCT_OPS:
                raise Unsupported("links of networking and struct_ops programs")
            case ProgType.KPROBE if program.attach in _MULTI_PROBES:
                self._create_kprobe_multi(loaded, ())
            case _:
                # Attach type 0 (CGROUP_INET_INGRESS) is for none of the other types.
                _refuse(EINVAL, "this type is not attached by a link without a target")

    def _attach_tracing(self, loaded: VerifiedLoad) -> None:
        """``bpf_tracing_prog_attach``."""
        program = loaded.program
        site = _site(loaded)
        if site is None or program.attach not in _TRAMPOLINE_KINDS[program.prog_type]:
            _refuse(EINVAL, "this attach type is not attached by a trampoline")
        if program.prog_type == ProgType.EXT:
            if site in self.extensions or self.programs[site]:
                _refuse(EBUSY, "the function is replaced or traced already")
            self.extensions.add(site)
            return
        if site in self.extensions:
            _refuse(EBUSY, "the function is replaced by an extension")
        weight = _weight(program)
        if self.programs[site] + weight > self.rules.max_links:
            _refuse(E2BIG, f"{self.programs[site]} programs are attached already")
        self._check_trampoline(loaded)
        self.programs[site] += weight

    def _check_trampoline(self, loaded: VerifiedLoad) -> None:
        """Making the image, then patching the site."""
        target = loaded.target
        assert target is not None
        if target.model is not None and target.model.nr_regs > self.rules.max_slots:
            _refuse(ENOTSUPP, f"{target.name} needs {target.model.nr_regs} argument slots")
        if target.prog is not None:
            return
        if target.name in self.kernel.names("init_text"):
            _refuse(EINVAL, f"{target.name} was freed after boot")
        if target.name in self.kernel.names("no_site"):
            _refuse(EBUSY, f"{target.name} has no patch site")

    def _link_iterator(self, loaded: VerifiedLoad) -> None:
        """``bpf_iter_link_attach`` without ``iter_info``."""
        name = loaded.target.name.removeprefix(ITER_PREFIX) if loaded.target else ""
        if loaded.program.sleepable and name not in self.kernel.names("iter_resched"):
            _refuse(EINVAL, f"iterator {name} does not reschedule")
        if name in self.kernel.names("iter_of_map"):
            _refuse(EBADF, f"iterator {name} wants a map")
        if name == "cgroup":
            _refuse(EINVAL, "iterator cgroup wants an order")

    # Tracepoints

    def _open_raw_tracepoint(self, loaded: VerifiedLoad, name: str | None) -> None:
        """``bpf_raw_tp_link_attach``."""
        program = loaded.program
        if program.prog_type in (ProgType.TRACING, ProgType.LSM, ProgType.EXT):
            if name is not None:
                _refuse(EINVAL, "the attach point is in the program's BTF id, not in a name")
            if program.attach == AttachType.TRACE_RAW_TP and program.prog_type == ProgType.TRACING:
                self._register_raw(loaded, loaded.target.name if loaded.target else "")
            else:
                self._attach_tracing(loaded)
        elif program.prog_type in _RAW_TYPES:
            if name is None:
                _refuse(EFAULT, "no name")
            self._register_raw(loaded, name)
        else:
            _refuse(EINVAL, "this type is not attached to raw tracepoints")

    def _register_raw(self, loaded: VerifiedLoad, name: str) -> None:
        """``bpf_get_raw_tracepoint`` and ``bpf_probe_register``."""
        count = arguments(self.kernel.btf).get(name)
        if count is None:
            _refuse(ENOENT, f"there is no tracepoint {name!r}")
        if loaded.program.sleepable and name not in self.kernel.names("faultable_tracepoints") and self._checks_faults:
            _refuse(EINVAL, f"tracepoint {name!r} must not fault")
        if loaded.verified.max_ctx_offset > 8 * count:
            _refuse(EINVAL, f"the program reads {loaded.verified.max_ctx_offset} bytes of {count} arguments")

    @property
    def _checks_faults(self) -> bool:
        return self.kernel.rules.target.faultable

    def _set_on_tracepoint(self, loaded: VerifiedLoad, event: PerfTracepoint) -> None:
        program = loaded.program
        is_syscall = event.system == "syscalls"
        if not is_syscall and event.name not in arguments(self.kernel.btf):
            _refuse(ENOENT, f"there is no event {event.system}/{event.name}")
        if program.prog_type != ProgType.TRACEPOINT:
            _refuse(EINVAL, "only TRACEPOINT programs are set on tracepoints")
        if program.sleepable and not is_syscall:
            _refuse(EINVAL, "the tracepoint must not fault")
        read = loaded.verified.max_ctx_offset
        if not read:
            return
        size = event_size(self.kernel.btf, event.name)
        if size is None:
            raise Unsupported(f"the record of event {event.system}/{event.name}")
        if read > size:
            _refuse(EACCES, f"the program reads {read} bytes of a record of {size}")

    # Kprobes

    def _set_on_kprobe(self, loaded: VerifiedLoad, probe: PerfKprobe) -> None:
        self._check_kprobe(probe)
        if loaded.program.prog_type != ProgType.KPROBE:
            _refuse(EINVAL, "only KPROBE programs are set on kprobes")
        if loaded.program.sleepable:
            _refuse(EINVAL, "programs on kprobes must not sleep")

    def _check_kprobe(self, probe: PerfKprobe) -> None:
        """Making the event: ``__trace_kprobe_create``, ``register_kprobe``."""
        kernel = self.kernel
        same = len(kernel.btf.functions_named(probe.symbol))
        if same > 1:
            _refuse(EADDRNOTAVAIL, f"{same} functions are named {probe.symbol}")
        known = probe.symbol in kernel.names("data_symbols") or probe.symbol in kernel.names("no_site")
        if not same and not known:
            _refuse(ENOENT, f"there is no symbol {probe.symbol}")
        if not same or any(probe.symbol in kernel.names(name) for name in ("no_site", "init_text", "nokprobe")):
            _refuse(EINVAL, f"{probe.symbol} must not be probed")
        if probe.retprobe and probe.offset:
            _refuse(EINVAL, "a return probe is at a function's entry")
        if not self._is_boundary(probe.offset):
            _refuse(EILSEQ, f"{probe.symbol}+{probe.offset} is not known to be the start of an instruction")

    def _is_boundary(self, offset: int) -> bool:
        """Whether an instruction begins there. BTF has no code: only the entry (endbr64, nop5) is known."""
        patch = self.rules.entry.site_offset
        return offset in (0, patch, patch + SITE_SIZE)

    def _create_kprobe_multi(self, loaded: VerifiedLoad, symbols: tuple[str, ...]) -> None:
        """``bpf_kprobe_multi_link_attach``."""
        kernel, program = self.kernel, loaded.program
        if not kernel.rules.target.fprobe:
            _refuse(EOPNOTSUPP, "the kernel has no fprobe")
        if program.prog_type != ProgType.KPROBE or program.attach not in _MULTI_PROBES or not symbols:
            _refuse(EINVAL, "only KPROBE programs for multi links are attached by them")
        if program.sleepable:
            _refuse(EINVAL, "programs on kprobes must not sleep")
        for symbol in symbols:
            without_site = any(symbol in kernel.names(name) for name in ("no_site", "init_text"))
            if without_site or not kernel.btf.functions_named(symbol):
                _refuse(ESRCH, f"no function {symbol} with a patch site")


def _site(loaded: VerifiedLoad) -> _Site | None:
    return None if loaded.target is None else (loaded.target.prog, loaded.target.btf_id)


def _weight(program: BpfProgram) -> int:
    return 2 if program.attach == AttachType.TRACE_FSESSION else 1


def _refuse(errno: int, why: str) -> NoReturn:
    raise VerifierError(errno, why)
