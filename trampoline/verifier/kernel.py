"""The kernel that is asked: its release, its types, and what verification needs to know of it beside."""

from dataclasses import dataclass

from trampoline.btf import Btf


@dataclass(frozen=True, slots=True, eq=False)
class KernelView:
    """``release`` is the flavour's name ("6.1", "6.12", "7.2"), ``btf`` vmlinux' own."""

    release: str
    btf: Btf
