"""Thunks: code for each function whose site jumps, which supplies the function's address as the return address of a
call would.

A call whose return address is never returned to unbalances the CPU's return stack buffer. Where sites may jump (7.0),
the jump leads to the function's thunk, which leaves the stack as the call would have left it::

    push  <the function's body, after the site>
    mov   r10, <the function>
    mov   rax, <its record>                if it has one
    jmp   <caller>
"""

import struct
from collections.abc import Iterable, Mapping
from errno import ERANGE

from asm import Image, assemble
from asm.encodings import INT3, jmp_rel32
from emu.kernel.errors import KernelError
from emu.kernel.kernel import Kernel
from emu.kernel.rcu import RcuFlavour
from emu.kernel.text.kallsyms import Symbol

KSYM = "tramplab_thunks"
SIZE = 32
"""Distance between thunks in bytes; at most 27 are used."""
FIRST_BLOCK, LARGEST_BLOCK = 16, 4096
"""Thunks allocated together: each block has twice as many as the one before."""

_PUSH_MOV = struct.Struct("<cI3sI")
_MOVABS = b"\x48\xb8"
_SIGN_EXTENDED = range(-(1 << 31), 1 << 31)


class _Block:
    """A block of adjacent thunks; an ``ImageText``."""

    def __init__(self, kernel: Kernel, count: int) -> None:
        self._kernel = kernel
        self.start = kernel.execmem.alloc(SIZE * count, KSYM)
        self.end = self.start + SIZE * count
        self.free = list(range(self.end - SIZE, self.start - SIZE, -SIZE))
        self.used = 0
        self._symbol: Symbol = kernel.kallsyms.add(KSYM, self.start, SIZE * count)
        kernel.machine.add_text(self)

    def __contains__(self, address: int) -> bool:
        return self.start <= address < self.end

    def image_at(self, address: int) -> Image | None:
        """Image of the thunk at a guest address, decoded from its bytes; None for a free one."""
        start = address - (address - self.start) % SIZE
        code = self._kernel.machine.read(start, SIZE)
        if code[:1] == INT3:
            return None
        _, body, _, function = _PUSH_MOV.unpack(code[: _PUSH_MOV.size])
        end, load = _PUSH_MOV.size, ""
        if code[end : end + 2] == _MOVABS:
            (record,) = struct.unpack_from("<Q", code, end + 2)
            end, load = end + 10, f"movabs rax, {record:#x} ; its record"
        (distance,) = struct.unpack_from("<i", code, end + 1)
        text = f"""
.phase entry
push {_signed(body)} ; the function's body
mov r10, {_signed(function)} ; the function
{load}
{{disp32}} jmp {start + end + 5 + distance:#x}
"""
        return assemble(text, start, {}, name=f"{KSYM} of {function | 0xFFFFFFFF00000000:#x}")

    def give_back(self) -> None:
        """Frees the block, which must be unused."""
        self._kernel.machine.remove_text(self)
        self._kernel.kallsyms.remove(self._symbol)
        self._kernel.execmem.free(self.start)


class Thunks:
    """Thunks of one kernel."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._blocks: list[_Block] = []
        self._of: dict[int, _Block] = {}
        self._unwritten: dict[int, bytes] = {}

    def make(self, function: int, body: int, caller: int, record: int = 0) -> int:
        """Guest address of a new thunk; ``write`` writes its code. KernelError: -ENOMEM, -ERANGE for a function outside
        the top 2 GiB.
        """
        for address in (function, body):
            if address - (1 << 64) not in _SIGN_EXTENDED:
                raise KernelError(ERANGE, f"{address:#x} is not in the top 2 GiB")
        block = next((block for block in reversed(self._blocks) if block.free), None)
        if block is None:
            count = min(FIRST_BLOCK << len(self._blocks), LARGEST_BLOCK)
            block = _Block(self._kernel, count)
            self._blocks.append(block)
        thunk = block.free.pop()
        block.used += 1
        self._of[thunk] = block
        code = _PUSH_MOV.pack(b"\x68", body & 0xFFFFFFFF, b"\x49\xc7\xc2", function & 0xFFFFFFFF)
        if record:
            code += _MOVABS + record.to_bytes(8, "little")
        self._unwritten[thunk] = code + jmp_rel32(thunk + len(code), caller)
        return thunk

    def write(self) -> None:
        """Writes new thunks, adjacent ones in one piece: there may be thousands."""
        self._store(self._unwritten)
        self._unwritten.clear()

    def _store(self, codes: Mapping[int, bytes]) -> None:
        run = bytearray()
        start = 0
        for thunk in sorted(codes):
            if run and thunk != start + len(run):
                self._kernel.execmem.write(start, bytes(run))
                run.clear()
            if not run:
                start = thunk
            run += codes[thunk].ljust(SIZE, INT3)
        if run:
            self._kernel.execmem.write(start, bytes(run))

    def put(self, thunk: int) -> None:
        """Frees a thunk that no site reaches, after a Tasks RCU grace period."""
        self._kernel.rcu.call_bulk(RcuFlavour.RCU_TASKS, self.discard, thunk)

    def discard(self, thunks: Iterable[int]) -> None:
        """Frees thunks at once."""
        freed: dict[int, bytes] = {}
        for thunk in thunks:
            block = self._of.pop(thunk)
            block.free.append(thunk)
            block.used -= 1
            if self._unwritten.pop(thunk, None) is None:
                freed[thunk] = INT3
        for block in [block for block in self._blocks if not block.used]:
            self._blocks.remove(block)
            block.give_back()
        self._store({thunk: code for thunk, code in freed.items() if any(thunk in block for block in self._blocks)})


def _signed(value: int) -> str:
    return hex((value ^ 1 << 31) - (1 << 31))
