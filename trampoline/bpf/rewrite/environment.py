"""Addresses that rewriting inserts into a program."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from trampoline.bpf.rewrite.errors import RewriteError


@dataclass(frozen=True, slots=True)
class Environment:
    """A kernel and the program's maps, as guest addresses."""

    call_base: int
    """``__bpf_call_base``: calls are offsets from it."""
    functions: Mapping[str, int] = field(default_factory=dict)
    """Kernel functions by name, including helpers and kfuncs."""
    variables: Mapping[str, int] = field(default_factory=dict)
    """Kernel variables by name (``jiffies``); per-CPU ones (``cpu_number``) by their offset."""
    maps: tuple[int, ...] = ()
    """struct bpf_map of each of the program's maps."""
    map_values: Mapping[int, int] = field(default_factory=dict)
    """Start of the values of directly addressed maps, by map index."""
    objects: Mapping[int, int] = field(default_factory=dict)
    """Kernel variables by BTF id, for LD_IMM64 with such an id."""
    kfunc_name: Callable[[int], str] = str
    """Name of a kfunc by its BTF id."""
    hardened: bool = False
    """Constants are blinded (bpf_jit_harden): direct tail calls are not used."""

    def function(self, name: str) -> int:
        """Address of a kernel function. Raises RewriteError if unknown."""
        return self._of(self.functions, name, "function")

    def variable(self, name: str) -> int:
        """Address of a kernel variable. Raises RewriteError if unknown."""
        return self._of(self.variables, name, "variable")

    def call(self, name: str) -> int:
        """The immediate of a call of a kernel function. Raises RewriteError if unknown or out of reach."""
        offset = self.function(name) - self.call_base
        if not -(1 << 31) <= offset < 1 << 31:
            raise RewriteError(f"{name} is out of reach of __bpf_call_base")
        return offset

    @staticmethod
    def _of(names: Mapping[str, int], name: str, what: str) -> int:
        if name not in names:
            raise RewriteError(f"no {what} {name} is known")
        return names[name]
