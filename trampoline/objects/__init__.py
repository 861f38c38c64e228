"""clang's BPF objects: from an ELF file to programs and maps (what libbpf does before it asks the kernel)."""

from trampoline.errors import ObjectError
from trampoline.objects.bpf_object import BpfObject, Entry, Variable

__all__ = ["BpfObject", "Entry", "ObjectError", "Variable"]
