"""Checks of links of iterators (kernel/bpf/bpf_iter.c)."""

from errno import EBADF, EINVAL

from trampoline.bpf.verifier.load.bpf_prog_load import VerifiedLoad
from trampoline.bpf.verifier.load.links.link import KernelLinks, refuse
from trampoline.bpf.verifier.target.check_attach_target import ITER_PREFIX


def attach(links: KernelLinks, loaded: VerifiedLoad) -> None:
    """``bpf_iter_link_attach`` without ``iter_info``. Raises VerifierError."""
    name = loaded.target.name.removeprefix(ITER_PREFIX) if loaded.target else ""
    if loaded.program.sleepable and name not in links.kernel.names("iter_resched"):
        refuse(EINVAL, f"iterator {name} does not reschedule")
    if name in links.kernel.names("iter_of_map"):
        refuse(EBADF, f"iterator {name} needs a map")
    if name == "cgroup":
        refuse(EINVAL, "iterator cgroup needs an order")
