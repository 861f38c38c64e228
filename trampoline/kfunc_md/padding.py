"""Metadata back end ``padding``: a marker and a pointer in the bytes in front of a function (CONFIG_CALL_PADDING).

Function padding is text, so it is patched like text, int3 first. It is never executed: functions are entered at their
symbol. CPUs only read it; the int3 replaces the marker, so a checked look-up takes a padding for unclaimed while it is
being written.

::

    func - padding   b8                marker
    func - padding+1 pointer           low 32 bits of the metadata's address, one store
    ...              the rest          call-depth accounting may be there: it leaves 7 of 16 bytes
    func             endbr64, site
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from errno import EOPNOTSUPP

from asm.encodings import NOPS
from emu.errors import NotMapped
from emu.kernel.errors import KernelError
from emu.kernel.kernel import Kernel
from trampoline.kfunc_md.arena import MdArena
from trampoline.kfunc_md.backend import REGISTERS
from trampoline.kfunc_md.lookup import MARKER, Entered, LookupRegisters, padding_lookup

SIZE = 5
"""Number of claimed bytes of a padding."""


@dataclass(slots=True)
class _Claim:
    original: bytes
    mds: int = 0
    """Number of metadata objects that look-ups may have found here."""


class Padding:
    """Metadata pointers in function padding.

    A function without padding, not 16-byte aligned, or whose padding contains anything but nops is refused with
    -EOPNOTSUPP. A padding is claimed by its first metadata; a removal clears the marker and the pointer, and the nops
    are restored after the last grace period.
    """

    name = "padding"

    def __init__(self, kernel: Kernel) -> None:
        self._kernel, self._machine = kernel, kernel.machine
        self._arena = MdArena(kernel)
        self.nodes = self._arena
        self._bytes = kernel.entry.padding
        self._claims: dict[int, _Claim] = {}
        self._late: set[int] = set()

    @property
    def claimed(self) -> int:
        """Number of functions whose padding is not nops at present."""
        return len(self._claims)

    @property
    def symbols(self) -> dict[str, int]:
        """Empty: the look-up addresses the text directly."""
        return {}

    @property
    def memory(self) -> dict[str, int]:
        """Bytes of claimed padding, which take no additional memory."""
        return {"claimed padding": SIZE * len(self._claims)}

    def find(self, func: int) -> int:
        if func not in self._claims:
            return 0
        found = self._machine.read(self._place(func), SIZE)
        return int.from_bytes(found[1:], "little", signed=True) % (1 << 64) if found[0] == MARKER else 0

    def find_all(self, functions: Iterable[int]) -> dict[int, int]:
        return {func: self.find(func) for func in functions}

    def lookup(
        self,
        entered: Entered,
        *,
        label: str,
        missing: str,
        registers: LookupRegisters = REGISTERS,
        checked: bool = False,
    ) -> str:
        """``padding_lookup``; KernelError -EOPNOTSUPP on kernels without padding."""
        if self._bytes < SIZE:
            raise KernelError(EOPNOTSUPP, "functions of this kernel have no padding")
        return padding_lookup(
            entered, self._bytes, label=label, missing=missing, registers=registers, checked=checked
        )

    def prepare(self, functions: Sequence[int]) -> None:
        """Checks that the padding can be claimed. KernelError -EOPNOTSUPP; injected patch failures occur here."""
        for func in functions:
            if func not in self._claims:
                self._original(func)
        for func in functions:
            self._kernel.point_patch(self._place(func))

    def insert(self, mds: Mapping[int, int]) -> None:
        """Writes markers and pointers in one batch."""
        texts = {}
        for func, md in mds.items():
            claim = self._claims.get(func)
            if claim is None:
                claim = self._claims[func] = _Claim(self._original(func))
            claim.mds += 1
            texts[func] = bytes([MARKER]) + (md & 0xFFFF_FFFF).to_bytes(4, "little")
        self._write(texts)

    def remove(self, functions: Sequence[int]) -> None:
        """Clears marker and pointer, which both forms of look-up take for no metadata."""
        self._write(dict.fromkeys(functions, NOPS[1] + bytes(4)))

    def shrink(self) -> None:
        """Does nothing: padding has no table."""

    def forget(self, functions: Sequence[int]) -> None:
        """Restores the nops, unless the padding was claimed again; during a text patch, with the next change."""
        for func in functions:
            claim = self._claims[func]
            claim.mds -= 1
            if not claim.mds:
                self._late.add(func)
        if not self._kernel.text_poke.text_mutex.held:
            self._write({})

    def _write(self, texts: Mapping[int, bytes]) -> None:
        poke = self._kernel.text_poke
        with poke.text_mutex:
            late = {func for func in self._late if not self._claims[func].mds}
            self._late.clear()
            back = {func: self._claims[func].original for func in late}
            for func, text in sorted({**back, **texts}.items()):
                poke.batch_add(self._place(func), text, NOPS[SIZE])
            poke.batch_finish()
            # Only now does it contain nops; it may have been claimed again meanwhile.
            for func in late:
                if not self._claims[func].mds:
                    del self._claims[func]

    def _place(self, func: int) -> int:
        return func - self._bytes

    def _original(self, func: int) -> bytes:
        """Nops in a function's padding. KernelError -EOPNOTSUPP if it can't be claimed."""
        if self._bytes < SIZE:
            raise KernelError(EOPNOTSUPP, f"the function at {func:#x} has no padding")
        if func & 15:
            raise KernelError(EOPNOTSUPP, f"the function at {func:#x} is not 16-byte aligned")
        try:
            found = self._machine.read(self._place(func), SIZE)
        except NotMapped:
            raise KernelError(EOPNOTSUPP, f"nothing is in front of the function at {func:#x}") from None
        if not _is_nops(found):
            raise KernelError(EOPNOTSUPP, f"the padding of the function at {func:#x} is taken: {found.hex(' ')}")
        return found


def _is_nops(code: bytes) -> bool:
    while code:
        nop = next((nop for nop in NOPS.values() if code.startswith(nop)), None)
        if nop is None:
            return False
        code = code[len(nop) :]
    return True
