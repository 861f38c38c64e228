"""Kernel releases by name, and kernels of a release for the verifier."""

from trampoline.bpf.btf.btf import Btf
from trampoline.bpf.verifier.kernel_view import KernelView
from trampoline.releases import recorded_releases, releases

RELEASES = {found.name: found for found in releases()}
RECORDED = tuple(found.name for found in recorded_releases())
"""Names of the releases that have recordings."""


def kernel_view(release: str, btf: Btf) -> KernelView:
    """The kernel of a release with these types."""
    return KernelView(RELEASES[release].verifier, btf)
