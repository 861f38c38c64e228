"""Program arrays: the targets of tail calls (kernel/bpf/arraymap.c). Slots contain addresses of ``struct bpf_prog``."""

from collections.abc import Callable
from contextlib import ExitStack
from errno import EINVAL
from typing import Any

from emu.kernel.errors import KernelError
from trampoline.bpf.maps.fd_array import FdArray
from trampoline.bpf.prog import BpfProg, TailOwner

Patch = Callable[["ProgArray", int, BpfProg | None], None]


class ProgArray(FdArray[BpfProg]):
    """``BPF_MAP_TYPE_PROG_ARRAY``: ``jumps[0] = prog``, ``del jumps[0]``. A slot has a reference to its program."""

    owner: TailOwner | None = None

    def allocate(self, undo: ExitStack) -> None:
        self.patches: list[Patch] = []
        """Called with the array, the slot and its new program before the old one is released, to patch direct tail
        calls (``map_poke_run``).
        """
        super().allocate(undo)

    def drop_user(self) -> None:
        """Clear every slot, as on closing the last file descriptor: programs in it may use it themselves."""
        self.clear()

    def check_user(self, owner: TailOwner) -> None:
        """Check a program that enters this array or calls through it.

        Raises KernelError -EINVAL if its type or context differs from the first such program's
        (``bpf_prog_map_compatible``).
        """
        if self.owner is None:
            self.owner = owner
        elif self.owner != owner:
            raise KernelError(EINVAL, f"{self.name} is for programs of another type")

    def _set(self, index: int, prog: BpfProg | None) -> None:
        old = self._held.pop(index, None)
        if prog is not None:
            self.site.programs.get(prog)
            self._held[index] = prog
        self.machine.write_u64(self.slot(index), prog.address if prog is not None else 0)
        for patch in list(self.patches):
            patch(self, index, prog)
        if old is not None:
            self.site.programs.put(old)

    def put(self, key: Any, value: Any, flags: int = 0) -> None:
        """Put a program into a slot. Raises KernelError -EINVAL for flags and for an incompatible program, -E2BIG
        beyond the last slot.
        """
        if not isinstance(value, BpfProg):
            raise TypeError(f"{self.name} takes programs, not {value!r}")
        index = self._checked(key, flags)
        if value.tail_owner is None:
            raise KernelError(EINVAL, f"{value.name} is not an eBPF program and cannot be tail-called")
        self.check_user(value.tail_owner)
        self._set(index, value)
