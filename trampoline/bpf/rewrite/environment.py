"""Addresses that rewriting writes into a program."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from trampoline.bpf.rewrite.errors import RewriteError


@dataclass(frozen=True, slots=True)
class Environment:
    """A kernel and the program's maps, as guest addresses."""

    call_base: int
    """``__bpf_call_base``: calls are offsets from it."""
    functions: Mapping[str, int] = field(default_factory=dict)
    """Kernel functions by name, helpers and kfuncs among them."""
    variables: Mapping[str, int] = field(default_factory=dict)
    """Kernel variables by name (``jiffies``); of per-CPU ones (``cpu_number``) their offset."""
    maps: tuple[int, ...] = ()
    """struct bpf_map of each of the program's maps."""
    map_values: Mapping[int, int] = field(default_factory=dict)
    """Where values of directly addressed maps begin, by the map's number."""
    objects: Mapping[int, int] = field(default_factory=dict)
    """Variables of the kernel by their BTF id, for LD_IMM64 with one."""
    kfunc_name: Callable[[int], str] = str
    """Name of a kfunc by its BTF id."""
    hardened: bool = False
    """Constants are blinded (bpf_jit_harden): direct tail calls are not used."""

    def function(self, name: str) -> int:
        """Address of a kernel function. Raises RewriteError if there is none."""
        return self._of(self.functions, name, "function")

    def variable(self, name: str) -> int:
        """Address of a kernel variable. Raises RewriteError if there is none."""
        return self._of(self.variables, name, "variable")

    def call(self, name: str) -> int:
        """The immediate of a call of a kernel function."""
        offset = self.function(name) - self.call_base
        if not -(1 << 31) <= offset < 1 << 31:
            raise RewriteError(f"{name} is out of reach of __bpf_call_base")
        return offset

    @staticmethod
    def _of(names: Mapping[str, int], name: str, what: str) -> int:
        if name not in names:
            raise RewriteError(f"no {what} {name} is known")
        return names[name]
