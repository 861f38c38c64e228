"""The laboratory's machinery in a Unicorn engine owned by another program.

It uses only the memory it is given for code and data, and leaves the engine as it was found: hooks and mappings are
removed, patched bytes restored. With or without paging, or with a TLB mode of the owner's: all addresses are virtual
ones as the engine translates them.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from unicorn.unicorn_const import UC_HOOK_CODE, UC_PROT_EXEC, UC_PROT_READ, UC_PROT_WRITE
from unicorn.unicorn_py3.unicorn import Uc, UcError
from unicorn.x86_const import UC_X86_REG_RIP

from asm import Image, assemble
from emu.counting import InstructionCounter, Method, counter_for
from emu.counting.counts import InstructionCounts, aggregate
from emu.errors import MachineError, NotMapped
from emu.host import libunicorn
from emu.machine.address_map import PAGE_MASK, PAGE_SIZE
from emu.machine.image_map import ImageMap
from emu.machine.registers import ARGUMENTS, RegisterBatch, Registers

_ALIGNMENT = 16
_RET = b"\xc3"


@dataclass(slots=True)
class _Region:
    """Memory from the owner, allocated from its start."""

    start: int
    size: int
    used: int = 0

    def take(self, size: int) -> int:
        start = self.used
        if start + size > self.size:
            raise MachineError(f"{size} bytes wanted, {self.size - start} left of the {self.size} at {self.start:#x}")
        self.used = (start + size + _ALIGNMENT - 1) & -_ALIGNMENT
        return self.start + start


class Counted:
    """Result of ``ForeignEngine.count``: ``counts`` is set at its end."""

    def __init__(self) -> None:
        self.counts: InstructionCounts | None = None


class ForeignEngine:
    """An installation in the engine ``uc``.

    ``code`` and ``data`` are (address, size in bytes) of memory that it may use: already mapped by the owner, or, with
    ``map``, mapped here (whole pages; physical addresses if the engine pages). MachineError if that is refused.
    """

    def __init__(
        self, uc: Uc, *, code: tuple[int, int], data: tuple[int, int], map: bool = False, counting: str = "auto"
    ) -> None:
        self.uc = uc
        self.regs = Registers(uc._uch.value or 0)
        self.images = ImageMap()
        self._code, self._data = _Region(*code), _Region(*data)
        self._arguments = RegisterBatch(self.regs.engine, (*ARGUMENTS, "rsp"))
        self._undo: list[tuple[int, bytes]] = []
        self._hooks: list[int] = []
        self._calls: dict[int, tuple[str, Callable[[ForeignEngine], int | None]]] = {}
        self._mapped: list[tuple[int, int]] = []
        self._counting = counting
        self._counter: InstructionCounter | None = None
        if map:
            self._map(*code, UC_PROT_READ | UC_PROT_EXEC)
            try:
                self._map(*data, UC_PROT_READ | UC_PROT_WRITE)
            except MachineError:
                self.remove()
                raise

    def _map(self, address: int, size: int, prot: int) -> None:
        try:
            self.uc.mem_map(address, size, prot)
        except UcError as error:
            raise MachineError(f"{address:#x} + {size:#x} can't be mapped: {error}") from error
        self._mapped.append((address, size))

    # Memory ---------------------------------------------------------------------------------------------------------

    def read(self, address: int, size: int) -> bytes:
        """Bytes at a virtual address. NotMapped."""
        try:
            return b"".join(bytes(self.uc.mem_read(at, length)) for at, length in self._pieces(address, size))
        except UcError as error:
            raise NotMapped(address) from error

    def write(self, address: int, data: bytes) -> None:
        """Write data or patch code at a virtual address; ``remove`` restores the old bytes.

        The engine executes new code from the next block on. NotMapped: nothing is written.
        """
        old = self.read(address, len(data))
        self._undo.append((address, old))
        self._poke(address, data)

    def alloc_data(self, size: int) -> int:
        """Allocate ``size`` zeroed bytes of the data memory; returns the address. MachineError if it is exhausted."""
        address = self._data.take(size)
        self.write(address, bytes(size))
        return address

    def place(self, text: str, symbols: Mapping[str, int] | None = None, *, name: str = "image") -> Image:
        """Assemble a text into the code memory. asm.AsmError; MachineError if there is no room."""
        address = self._code.start + self._code.used
        image = assemble(text, address, symbols or {}, name=name)
        self._code.take(len(image))
        self.write(address, image.code)
        self.images.add(image)
        return image

    def _poke(self, address: int, data: bytes) -> None:
        if self._counter is not None:
            self._counter.invalidate(address, address + len(data))
        done = 0
        for at, length in self._pieces(address, len(data)):
            self.uc.mem_write(at, data[done : done + length])
            if libunicorn.is_executable(self.regs.engine, address + done):
                self.uc.ctl_remove_cache(address + done, address + done + length)
            done += length

    def _pieces(self, address: int, size: int) -> Iterator[tuple[int, int]]:
        """(address for ``mem_read``, length) of each page's part of a range."""
        end = address + size
        while address < end:
            length = min(PAGE_SIZE - (address & PAGE_MASK), end - address)
            physical = libunicorn.translate(self.regs.engine, address)
            if physical is None:
                raise NotMapped(address)
            yield physical, length
            address += length

    # Host calls -----------------------------------------------------------------------------------------------------

    def host_call(self, name: str, fn: "Callable[[ForeignEngine], int | None]") -> int:
        """Address for guest code to call to run ``fn``; its result goes to rax, None leaves rax unchanged.

        What ``fn`` raises ends the owner's run and is raised by ``emu_start``. It must change neither rip nor rsp.
        """
        stub = self._code.take(len(_RET))
        self.write(stub, _RET)
        self._calls[stub] = (name, fn)
        self._hooks.append(self.uc.hook_add(UC_HOOK_CODE, self._called, begin=stub, end=stub))
        self.uc.ctl_remove_cache(stub, stub + 1)
        return stub

    def _called(self, _uc: Uc, address: int, _size: int, _user: object) -> None:
        result = self._calls[address][1](self)
        if result is not None:
            self.regs.rax = result

    def args(self, n: int) -> list[int]:
        """The first ``n`` arguments of the function that was just entered: registers, then the stack."""
        *registers, rsp = self._arguments.read()
        on_stack = self.read(rsp + 8, 8 * max(0, n - len(registers)))
        return (registers + [int.from_bytes(on_stack[at : at + 8], "little") for at in range(0, len(on_stack), 8)])[:n]

    # Counting -------------------------------------------------------------------------------------------------------

    @contextmanager
    def count(self) -> Iterator[Counted]:
        """Context for one ``emu_start`` of the owner: counts its instructions."""
        if self._counter is None:
            method: Method = self._counting  # type: ignore[assignment]
            self._counter = counter_for(self.uc, self.read, method)
        counter, counted = self._counter, Counted()
        counter.reset()
        counter.begin()
        faulted = False
        try:
            yield counted
        except UcError:
            faulted = True
            raise
        finally:
            counter.end(self.uc.reg_read(UC_X86_REG_RIP), faulted)
            counted.counts = aggregate(
                counter.counts(), counter.unbalanced_returns, self.images.phase, self._function_at
            )

    def _function_at(self, address: int) -> str | None:
        image = self.images.at(address)
        if image is not None:
            return image.name
        return self._calls[address][0] if address in self._calls else None

    # The end --------------------------------------------------------------------------------------------------------

    def remove(self) -> None:
        """Remove hooks, counter and mappings, and restore every byte that was written.

        Not from within a run. A second time does nothing.
        """
        if self._counter is not None:
            self._counter.remove()
            self._counter = None
        for hook in self._hooks:
            self.uc.hook_del(hook)
        self._hooks.clear()
        for address, old in reversed(self._undo):
            self._poke(address, old)
        self._undo.clear()
        for address, size in self._mapped:
            self.uc.mem_unmap(address, size)
        self._mapped.clear()
        self._calls.clear()

    def __enter__(self) -> "ForeignEngine":
        return self

    def __exit__(self, *exc: object) -> None:
        self.remove()
