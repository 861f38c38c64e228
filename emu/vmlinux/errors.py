"""Everything that a real kernel's image, memory or code is refused for. ``VmlinuxError`` is the root."""

from emu.errors import EmuError

__all__ = [
    "ImageError",
    "NoBtf",
    "NoConfiguration",
    "NoKallsyms",
    "NoSymbol",
    "VmlinuxError",
]


class VmlinuxError(EmuError):
    """Root of the errors of ``emu.vmlinux``."""


class ImageError(VmlinuxError):
    """A file that is not a kernel image this project can run: truncated, another architecture, another format."""


class NoBtf(VmlinuxError):
    """An image without BTF (``CONFIG_DEBUG_INFO_BTF``): no structure's layout is known."""


class NoConfiguration(VmlinuxError):
    """An image without IKCONFIG and without a ``config-*`` beside it."""


class NoKallsyms(VmlinuxError):
    """Kernel memory in which no kallsyms tables stand (``CONFIG_KALLSYMS``)."""


class NoSymbol(VmlinuxError, KeyError):
    """A name that the kernel's symbol table lacks."""

    def __init__(self, name: str) -> None:
        super().__init__(f"this kernel has no symbol {name!r}")
        self.name = name

    def __str__(self) -> str:
        return str(self.args[0])
