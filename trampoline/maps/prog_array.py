"""Program arrays: where tail calls go (kernel/bpf/arraymap.c). Slots hold addresses of ``struct bpf_prog``."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from errno import E2BIG, EINVAL, ENOENT
from typing import Any

from emu.kernel.errors import KernelError
from trampoline.bpf.program import MapSpec
from trampoline.maps.array import ArrayLike, check_array
from trampoline.maps.bpf_map import beyond, index_of
from trampoline.maps.flags import MapFlag
from trampoline.prog import BpfProg, TailOwner


def check_prog_array(spec: MapSpec) -> None:
    """``fd_array_map_alloc_check``: KernelError -EINVAL, -E2BIG."""
    if spec.value_size != 4:
        raise KernelError(EINVAL, f"{spec.name}: values of {spec.value_size} bytes; a file descriptor has 4")
    if spec.flags & (MapFlag.RDONLY_PROG | MapFlag.WRONLY_PROG):
        raise KernelError(EINVAL, f"{spec.name}: programs don't read or write program arrays")
    check_array(spec)


Patch = Callable[["ProgArray", int, BpfProg | None], None]


class ProgArray(ArrayLike):
    """``BPF_MAP_TYPE_PROG_ARRAY``: ``jumps[0] = prog``, ``del jumps[0]``. A slot holds a reference to its program."""

    owner: TailOwner | None = None

    def allocate(self, undo: ExitStack) -> None:
        """As all arrays."""
        self.patches: list[Patch] = []
        """Told the array, the slot and its new program, before the old one goes: direct tail calls are patched
        (``map_poke_run``).
        """
        self._held: dict[int, BpfProg] = {}
        super().allocate(undo)

    def release(self) -> None:
        """Drop the programs and give its memory back."""
        self.drop_user()
        super().release()

    def drop_user(self) -> None:
        """Empty every slot, as when the last file descriptor is closed: programs in it may use it themselves."""
        for index in list(self._held):
            self._set(index, None)

    @property
    def elem_size(self) -> int:
        """A pointer."""
        return 8

    def check_user(self, owner: TailOwner) -> None:
        """A program wants to be in this array or to call through it: KernelError -EINVAL where its type or context is
        another than that of the first one that did (``bpf_prog_map_compatible``).
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

    # Python's face --------------------------------------------------------------------------------------------------

    def __getitem__(self, key: Any) -> BpfProg:
        found = self._held.get(index_of(self.key_format.encode(key)))
        if found is None:
            raise KeyError(key)
        return found

    def put(self, key: Any, value: Any, flags: int = 0) -> None:
        """Put a program into a slot: KernelError -EINVAL for flags and for one that does not go with the others,
        -E2BIG for a slot that there is not.
        """
        index = index_of(self.key_format.encode(key))
        if not isinstance(value, BpfProg):
            raise TypeError(f"{self.name} takes programs, not {value!r}")
        if flags:
            raise KernelError(EINVAL, f"{self.name}: update with flags {flags:#x}")
        if index >= self.spec.max_entries:
            raise beyond(self.name, index)
        if value.tail_owner is None:
            raise KernelError(EINVAL, f"{value.name} is no eBPF program: nothing can tail-call it")
        self.check_user(value.tail_owner)
        self._set(index, value)

    def delete_elem(self, key: bytes) -> None:
        """Empty a slot: KernelError -E2BIG, -ENOENT for one that is empty."""
        index = index_of(key)
        if index >= self.spec.max_entries:
            raise KernelError(E2BIG, f"{self.name} has no element {index}")
        if index not in self._held:
            raise KernelError(ENOENT, f"{self.name}: slot {index} is empty")
        self._set(index, None)

    def __contains__(self, key: object) -> bool:
        return index_of(self.key_format.encode(key)) in self._held

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._held))

    def __len__(self) -> int:
        return len(self._held)

    def clear(self) -> None:
        """Empty every slot."""
        self.drop_user()


