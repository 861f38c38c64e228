"""View of a kernel for the verifier: the rules of its release, its types, the number of its CPUs."""

from dataclasses import dataclass

from trampoline.bpf.btf.btf import Btf
from trampoline.bpf.function_lists import Names, names
from trampoline.bpf.verifier.rules.verifier_rules import VerifierRules


@dataclass(frozen=True, slots=True, eq=False)
class KernelView:
    """``btf``: vmlinux's own BTF."""

    rules: VerifierRules
    btf: Btf
    cpus: int = 1
    """Maximum number of CPUs (``nr_cpu_ids``)."""

    def names(self, list_name: str) -> Names:
        """A list of functions for this release, from the files of ``trampoline/bpf/data``."""
        return names(list_name, self.rules.version)

    def has_address(self, name: str) -> bool:
        """True if kallsyms contains the function: BTF has a few that the linker removed or the compiler renamed."""
        return name not in self.names("no_address")
