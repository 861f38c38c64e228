"""The kernel as verification sees it: its release, its types, and a few facts."""

from dataclasses import dataclass

from trampoline.bpf.btf.btf import Btf
from trampoline.bpf.function_lists import Names, names


@dataclass(frozen=True, slots=True, eq=False)
class KernelView:
    """``release`` is the flavour's name ("6.1", "6.12", "7.2"), ``btf`` vmlinux' own."""

    release: str
    btf: Btf
    cpus: int = 1
    """Maximum number of CPUs (``nr_cpu_ids``)."""

    def names(self, list_name: str) -> Names:
        """A list of functions for this release, from the files of ``trampoline/bpf/data``."""
        return names(list_name, self.release)

    def has_address(self, name: str) -> bool:
        """True if kallsyms contains the function: BTF has a few that the linker removed or the compiler renamed."""
        return name not in self.names("no_address")
