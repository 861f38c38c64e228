"""View of a kernel for the verifier: the rules of its release, its types, the number of its CPUs."""

from dataclasses import dataclass

from trampoline.bpf.btf.btf import Btf
from trampoline.bpf.function_lists import Names, names
from trampoline.bpf.verifier.rules.verifier_rules import VerifierRules


@dataclass(frozen=True, slots=True, eq=False)
class KernelView:
    """``btf`` is vmlinux' own."""

    rules: VerifierRules
    btf: Btf
    cpus: int = 1
    """CPUs that it may have (``nr_cpu_ids``)."""

    def names(self, list_name: str) -> Names:
        """A list of functions as this release has it: the files of ``trampoline/bpf/data``."""
        return names(list_name, self.rules.version)

    def has_address(self, name: str) -> bool:
        """Whether kallsyms knows the function: BTF has a few that the linker left out or the compiler renamed."""
        return name not in self.names("no_address")
