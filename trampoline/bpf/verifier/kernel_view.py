"""The kernel that is asked: its release, its types, and what verification needs to know of it beside."""

from dataclasses import dataclass

from trampoline.bpf.btf.btf import Btf
from trampoline.bpf.function_lists import Names, names


@dataclass(frozen=True, slots=True, eq=False)
class KernelView:
    """``release`` is the flavour's name ("6.1", "6.12", "7.2"), ``btf`` vmlinux' own."""

    release: str
    btf: Btf
    cpus: int = 1
    """CPUs that it may have (``nr_cpu_ids``)."""

    def names(self, list_name: str) -> Names:
        """A list of functions as this release has it: the files of ``trampoline/bpf/data``."""
        return names(list_name, self.release)

    def has_address(self, name: str) -> bool:
        """Whether kallsyms knows the function: BTF has a few that the linker left out or the compiler renamed."""
        return name not in self.names("no_address")
