"""Facts of a real kernel: ``tramp kernel``."""

from dataclasses import asdict, dataclass, field
from typing import Any

from emu.errors import NotMapped
from emu.vmlinux.attachments import Attachment
from emu.vmlinux.dump_errors import MissingPage
from emu.vmlinux.errors import NoConfiguration, NoSymbol
from emu.vmlinux.ftrace_records import ftrace_records
from emu.vmlinux.listing import listing
from emu.vmlinux.ways import refusals
from trampoline.lab.own_kernel import ImagedKernel, OwnKernel, StockKernel

MATTERS = (
    "BPF_SYSCALL", "BPF_JIT", "BPF_JIT_ALWAYS_ON", "BPF_LSM", "BPF_EVENTS", "BPF_KPROBE_OVERRIDE",
    "DEBUG_INFO_BTF", "FTRACE", "FUNCTION_TRACER", "FUNCTION_GRAPH_TRACER", "DYNAMIC_FTRACE",
    "DYNAMIC_FTRACE_WITH_ARGS", "DYNAMIC_FTRACE_WITH_DIRECT_CALLS", "KPROBES", "OPTPROBES", "KPROBES_ON_FTRACE",
    "KRETPROBE_ON_RETHOOK", "FPROBE", "PREEMPT_NONE", "PREEMPT_VOLUNTARY", "PREEMPT", "PREEMPT_LAZY", "PREEMPT_RT",
    "PREEMPT_DYNAMIC", "PREEMPT_RCU", "X86_KERNEL_IBT", "CFI_CLANG", "FINEIBT", "MITIGATION_RETPOLINE",
    "MITIGATION_RETHUNK", "MITIGATION_CALL_DEPTH_TRACKING", "RETPOLINE", "RETHUNK", "CALL_DEPTH_TRACKING",
    "CALL_PADDING", "FUNCTION_ALIGNMENT",
)  # fmt: skip
"""Options on which the code of trampolines and probes depends, without CONFIG_."""


@dataclass(slots=True)
class KernelFacts:
    """Facts of one kernel. ``ways`` and ``floor`` are of an unbooted one, what follows of a memory image."""

    path: str
    release: str
    kind: str
    configuration: dict[str, str] | None = None
    """Of ``MATTERS``, those that are set; None where the kernel does not say."""
    sites: dict[str, int] | None = None
    """Functions that ftrace can patch, and those that are patched; None where the dump lacks the records."""
    ways: dict[str, str] | None = None
    """Each way in: "" or the kernel's refusal."""
    floor: dict[str, Any] | None = None
    """``replaced``: kernel functions that the host stands for, ``missing``: names that this kernel lacks; ``failed``:
    steps of its initialisation that returned an error.
    """
    attachments: list[dict[str, Any]] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)
    """What could not be read."""
    current: dict[str, Any] | None = None
    """The task of the chosen CPU."""
    log: list[str] = field(default_factory=list)
    """Last lines of the kernel's log."""

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


_LAST_LINES = 5


def facts(kernel: OwnKernel, *, with_listing: bool = False) -> KernelFacts:
    """Gather them; ``with_listing``: the code of each trampoline too. What the kernel's calls raise."""
    kind = "memory image" if kernel.is_memory_image else "unbooted"
    found = KernelFacts(kernel.path, kernel.release, kind)
    try:
        configuration = kernel.configuration
        found.configuration = {
            name: value for name in MATTERS if (value := configuration.get(f"CONFIG_{name}", "n")) != "n"
        }
    except NoConfiguration as error:
        found.gaps.append(str(error))
    try:
        records = ftrace_records(kernel.memory, kernel.symbols, kernel.layout)
        found.sites = {"functions": len(records), "patched": sum(records.values())}
    except (MissingPage, NotMapped, NoSymbol) as error:
        found.gaps.append(f"ftrace's records: {error}")
    if isinstance(kernel, StockKernel):
        machine = kernel.unbooted.machine
        found.floor = {
            "replaced": len(machine.floor_names),
            "missing": machine.floor_missing(),
            "failed": {name: result for name, result in kernel.unbooted.results.items() if result},
        }
        found.ways = refusals(kernel.unbooted)
    elif isinstance(kernel, ImagedKernel):
        image = kernel.image
        task = image.kernel.task_info(image.current)
        found.current = {"cpu": image.cpu, "pid": task.pid, "name": task.name}
        try:
            found.log = [record.text for record in image.log.records()[-_LAST_LINES:]]
        except (MissingPage, NotMapped) as error:
            found.gaps.append(f"log: {error}")
        found.attachments = [_attachment(kernel, one, with_listing) for one in kernel.attachments()]
        found.gaps += image.gaps
    return found


def _attachment(kernel: OwnKernel, one: Attachment, with_listing: bool) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "function": one.function,
        "target": one.target,
        "way": one.way,
        "program": asdict(one.program),
        "address": one.address,
        "trampoline": one.trampoline,
        "trampoline_name": None if one.trampoline is None else kernel.code.describe(one.trampoline),
        "link": one.link,
    }
    if with_listing:
        shown["listing"] = _listing(kernel, one.trampoline)
    return shown


def _listing(kernel: OwnKernel, address: int | None) -> list[str]:
    if address is None:
        return []
    try:
        return list(listing(kernel.memory, kernel.code, address))
    except (MissingPage, NotMapped) as error:
        return [str(error)]
