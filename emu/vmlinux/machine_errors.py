"""Errors of code of a real kernel that runs on the machine. Each carries what is known of where it happened."""

from emu.vmlinux.errors import VmlinuxError


class RunError(VmlinuxError):
    """Root: a call that did not return. ``where`` is function and offset, ``callers`` what the stack names, innermost
    first.
    """

    def __init__(self, what: str, where: str, callers: tuple[str, ...] = ()) -> None:
        trace = f", called by {' < '.join(callers)}" if callers else ""
        super().__init__(f"{what} at {where}{trace}")
        self.what, self.where, self.callers = what, where, callers


class KernelDied(RunError):
    """The kernel reached its end: panic, BUG, an oops, an exception that it has no answer to."""


class WouldSleep(RunError):
    """The task waits for something: no other task runs here that could wake it."""


class NotHosted(RunError):
    """An unbooted kernel reached a function whose work needs what its floor does not have (threads, files, devices)."""


class LimitReached(RunError):
    """The call executed as many instructions, or ran as long, as it was given."""


class NotInDump(RunError):
    """The code needs a page of memory that the dump does not contain. ``physical`` is its address."""

    def __init__(self, physical: int, where: str, callers: tuple[str, ...] = ()) -> None:
        page = physical & ~0xFFF
        super().__init__(f"physical page {page:#x} is not in the memory image: it was needed", where, callers)
        self.physical = physical


class StateUnusable(VmlinuxError):
    """A call after one that did not return: locks are held as that one left them. Reset, or restore a checkpoint."""
