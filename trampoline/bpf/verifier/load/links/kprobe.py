"""Checks of kprobes (kernel/trace/trace_kprobe.c, kernel/kprobes.c)."""

from errno import EADDRNOTAVAIL, EILSEQ, EINVAL, ENOENT

from emu.kernel.text.entry import SITE_SIZE
from trampoline.bpf.verifier.attach_requests import PerfKprobe
from trampoline.bpf.verifier.load.links.link import KernelLinks, refuse


def check(links: KernelLinks, probe: PerfKprobe) -> None:
    """Check the creation of the event: ``__trace_kprobe_create``, ``register_kprobe``. Raises VerifierError."""
    kernel = links.kernel
    same = len(kernel.btf.functions_named(probe.symbol))
    if same > 1:
        refuse(EADDRNOTAVAIL, f"{same} functions are named {probe.symbol}")
    known = probe.symbol in kernel.names("data_symbols") or probe.symbol in kernel.names("no_site")
    if not same and not known:
        refuse(ENOENT, f"no symbol {probe.symbol}")
    if not same or any(probe.symbol in kernel.names(name) for name in ("no_site", "init_text", "nokprobe")):
        refuse(EINVAL, f"{probe.symbol} must not be probed")
    if probe.retprobe and probe.offset:
        refuse(EINVAL, "a return probe must be at a function's entry")
    if not _is_boundary(links, probe.offset):
        refuse(EILSEQ, f"{probe.symbol}+{probe.offset} is not known to be the start of an instruction")


def _is_boundary(links: KernelLinks, offset: int) -> bool:
    """True if an instruction starts at the offset. BTF has no code: only the entry (endbr64, nop5) is known."""
    patch = links.rules.entry.site_offset
    return offset in (0, patch, patch + SITE_SIZE)
