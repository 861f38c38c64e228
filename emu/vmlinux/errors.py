"""Everything that a real kernel's image, memory or code is refused for. ``VmlinuxError`` is the root."""

from emu.errors import EmuError

__all__ = [
    "ImageError",
    "KernelDied",
    "NoBtf",
    "NoConfiguration",
    "NoKallsyms",
    "NoSymbol",
    "NotHosted",
    "Overlong",
    "VmlinuxError",
    "WouldSleep",
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


class KernelDied(VmlinuxError):
    """The kernel's code can't go on: an oops, a BUG, an exception without a way back, a misused allocation.

    ``callers`` are the return addresses that stood on the stack, innermost first, as ``name+offset``. Its locks stay
    held: the state is to be thrown away.
    """

    def __init__(self, message: str, callers: tuple[str, ...] = ()) -> None:
        super().__init__(message + (f"; called from {', '.join(callers)}" if callers else ""))
        self.callers = callers


class NotHosted(KernelDied):
    """A kernel function was reached whose work needs what the floor does not have (threads, files, devices)."""


class WouldSleep(KernelDied):
    """The kernel's code wants to sleep, and nothing is there that could wake it."""


class Overlong(KernelDied):
    """A call did not end within its time: a lock that is never released, or a limit that was too short."""
