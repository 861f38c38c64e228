"""Kernel modules: load, reference counts, unload (kernel/module/main.c)."""

from collections.abc import Callable
from dataclasses import dataclass, field
from errno import EEXIST, ENOENT, EWOULDBLOCK

from emu.kernel.errors import KernelError
from emu.kernel.text.functions import PlacedFunction


@dataclass(slots=True)
class Module:
    """A loaded module: its functions, its pages, and its reference count."""

    name: str
    functions: list[PlacedFunction]
    address: int
    size: int
    refs: int = 0
    undo: list[Callable[[], None]] = field(default_factory=list)
    """Actions of unloading, last first."""


class Modules:
    """The modules of one kernel by name."""

    def __init__(self) -> None:
        self._loaded: dict[str, Module] = {}

    def add(self, module: Module) -> None:
        """Add a module that was just placed. -EEXIST for a name in use."""
        self.check_free(module.name)
        self._loaded[module.name] = module

    def check_free(self, name: str) -> None:
        """Raise KernelError (-EEXIST) if a module of that name is loaded."""
        if name in self._loaded:
            raise KernelError(EEXIST, f"module {name} is loaded already")

    def get(self, name: str) -> None:
        """``try_module_get``; the kernel itself (no name) needs none. -ENOENT for a module that is not loaded."""
        if name:
            self[name].refs += 1

    def put(self, name: str) -> None:
        """``module_put``."""
        if name:
            self[name].refs -= 1

    def unload(self, name: str) -> None:
        """``delete_module``. -EWOULDBLOCK while it is referenced, -ENOENT if it is not loaded."""
        module = self[name]
        if module.refs:
            raise KernelError(EWOULDBLOCK, f"module {name} is in use, {module.refs} times")
        for step in reversed(module.undo):
            step()
        del self._loaded[name]

    def __getitem__(self, name: str) -> Module:
        try:
            return self._loaded[name]
        except KeyError:
            raise KernelError(ENOENT, f"module {name!r} is not loaded") from None

    def __contains__(self, name: object) -> bool:
        return name in self._loaded
