"""Livepatch: redirection of a function's calls to a replacement (kernel/livepatch/patch.c)."""

from errno import EBUSY, EINVAL

from emu.kernel.errors import KernelError
from emu.kernel.ftrace.ops import FtraceOps, FtraceOpsFlag
from emu.kernel.kernel import Kernel
from emu.kernel.structs import klp_func


class LivePatch:
    """A replacement for one function (``struct klp_func`` with its ftrace_ops), initially disabled.

    The replacement has the prototype of the function. KernelError -ENOENT if either is unknown.
    """

    def __init__(self, kernel: Kernel, function: str, replacement: str | int) -> None:
        self._kernel = kernel
        self.function = kernel.function(function).address
        self.replacement = kernel.kallsyms.address(replacement) if isinstance(replacement, str) else replacement
        self.ops = FtraceOps(
            f"livepatch of {function}",
            "klp_ftrace_handler",
            FtraceOpsFlag.SAVE_REGS | FtraceOpsFlag.DYNAMIC | FtraceOpsFlag.IPMODIFY,
        )

    @property
    def enabled(self) -> bool:
        """True if it is in force."""
        return self.ops.enabled

    def enable(self) -> None:
        """Redirect the function (``klp_patch_func``).

        -EBUSY if it is enabled already or a direct caller can't share the site, -EAGAIN if a direct caller is busy (the
        caller must retry), -EINVAL if the function has no patch site, -ENOMEM, and errors of patching. Nothing is
        changed then.
        """
        if self.enabled:
            raise KernelError(EBUSY, f"{self.ops.name} is in force already")
        ftrace, slab = self._kernel.ftrace, self._kernel.slab
        site = ftrace.ftrace_location(self.function)
        if not site:
            raise KernelError(EINVAL, f"{self.function:#x} has no ftrace location")
        self.ops.private = slab.alloc(klp_func.size, f"klp_func of {self.ops.name}")
        view = klp_func.view(self._kernel.machine, self.ops.private)
        view.old_func, view.new_func = self.function, self.replacement
        try:
            ftrace.ftrace_set_filter_ip(self.ops, site, reset=True)
            ftrace.register_ftrace_function(self.ops)
        except BaseException:
            self._forget()
            raise

    def disable(self) -> None:
        """Stop redirecting the function (``klp_unpatch_func``). -EINVAL if it is not in force."""
        if not self.enabled:
            raise KernelError(EINVAL, f"{self.ops.name} is not in force")
        self._kernel.ftrace.unregister_ftrace_function(self.ops)
        self._forget()

    def _forget(self) -> None:
        self._kernel.slab.free(self.ops.private)
        self.ops.private = 0
        self.ops.filter = set()
