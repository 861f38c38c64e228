"""Parts of a vCPU: an engine on the shared memory, its view of the text and its counter."""

from contextlib import suppress
from typing import TYPE_CHECKING

from unicorn.unicorn_const import UC_PROT_ALL
from unicorn.unicorn_py3.arch.intel import UcIntel
from unicorn.x86_const import UC_X86_REG_CR0, UC_X86_REG_CR3, UC_X86_REG_CR4

from emu.counting import CountingError, InstructionCounter
from emu.host import libunicorn
from emu.machine.address_map import PAGE_MASK, PAGE_SHIFT, PAGE_SIZE
from emu.machine.engine import Engine, Exit, new_engine
from emu.machine.faults import FAULTS
from emu.machine.paging import NX
from emu.machine.text_view import TextView, TextWrite

if TYPE_CHECKING:
    from emu.machine.machine import Machine

_CR0_WP_PG = 1 << 16 | 1 << 31
_CR4_PAE_FSGSBASE = 1 << 5 | 1 << 16
_EFER, _NXE = 0xC0000080, 1 << 11
_MANY_STALE = 32
"""Number of ranges, or of pages in a range, from which flushing all translations is cheaper."""


class Core:
    """An engine that runs code at the machine's addresses, with this CPU's view of the text.

    Memory is sequentially consistent: vCPUs take turns on one host thread.
    """

    def __init__(self, machine: "Machine", index: int) -> None:
        self.machine, self.index = machine, index
        ram = machine.ram
        self.view = TextView(ram, machine.tables, machine.view_frames)
        uc = new_engine()
        uc.mem_map_ptr(0, ram.size, UC_PROT_ALL, ram.host_address)
        # A reference to the engine keeps the memory alive that it runs on.
        uc.__dict__["ram"] = ram
        uc.reg_write(UC_X86_REG_CR3, self.view.root << PAGE_SHIFT)
        uc.reg_write(UC_X86_REG_CR4, uc.reg_read(UC_X86_REG_CR4) | _CR4_PAE_FSGSBASE)
        uc.msr_write(_EFER, uc.msr_read(_EFER) | _NXE)
        uc.reg_write(UC_X86_REG_CR0, uc.reg_read(UC_X86_REG_CR0) | _CR0_WP_PG)
        self._pristine = uc.context_save()
        self.engine = Engine(uc)
        self.regs = self.engine.regs
        self._counter: InstructionCounter | None = None
        self._handle = self.engine.handle
        self._counting = False
        self._tlb_stale = False
        self._stale: list[tuple[int, int]] = []
        self._all_stale = False

    @property
    def uc(self) -> UcIntel:
        """The Unicorn engine. Its memory functions take physical addresses."""
        return self.engine.uc

    @property
    def gs_base(self) -> int:
        """Guest address of this CPU's per-CPU area."""
        return self.regs.gs_base

    @gs_base.setter
    def gs_base(self, address: int) -> None:
        self.regs.gs_base = address

    @property
    def counter(self) -> InstructionCounter | None:
        """The counter of this vCPU's instructions, None if there is none."""
        return self._counter

    @counter.setter
    def counter(self, counter: InstructionCounter | None) -> None:
        self._counter = counter
        self.engine.stop_with(counter.request_stop if counter is not None else None)

    def execute(self, rip: int) -> tuple[Exit, int]:
        """Run from an address until an exit; returns the exit and rip."""
        if self.view.stale or self._tlb_stale or self._stale or self._all_stale:
            self._synchronise()
        if self._counting:
            self.settle_counter()
        engine, counter = self.engine, self._counter
        if counter is None:
            reached = engine.run(rip)
            reached_rip = engine.regs.rip
        else:
            self._counting = True
            counter.begin()
            reached = engine.run(rip)
            reached_rip = engine.regs.rip
            entered = reached in (Exit.ERROR, Exit.TICK) or engine.interrupt_number in FAULTS
            counter.end(reached_rip, entered)
            self._counting = False
        if self.machine.text_aliases:
            self.machine.adopt_guest_text_writes()
        return reached, reached_rip

    def settle_counter(self) -> None:
        """End the counter's run after Ctrl-C or an error of the counter prevented that."""
        if self._counting and self.counter is not None:
            with suppress(CountingError):
                while True:
                    self.counter.end(self.regs.rip, True)
        self._counting = False

    def forget_exception(self) -> None:
        """Clear the engine's pending exception: it would take a second page fault for a double fault."""
        saved, gs_base = self.regs.save(), self.regs.gs_base
        self.uc.context_restore(self._pristine)
        self.regs.load(saved)
        self.regs.gs_base = gs_base

    # Text -----------------------------------------------------------------------------------------------------------

    def pending(self) -> list[TextWrite]:
        """Writes to text that this vCPU has not adopted, in order, including those that it already sees."""
        return list(self.view.pending)

    def see_new(self, address: int) -> None:
        """See the new bytes of the pending writes that cover ``address``. MachineError if there are none."""
        if self.counter is not None:
            self.counter.invalidate(address & ~PAGE_MASK, (address & ~PAGE_MASK) + PAGE_SIZE)
        for write in self.view.see(address):
            self.text_changed(write.address, write.end)

    def serialize(self) -> None:
        """Adopt every pending write to text, as a serialising instruction does."""
        view = self.view
        ranges = view.pending_ranges
        if not ranges:
            return
        if len(ranges) > _MANY_STALE:
            ranges = [(min(start for start, _ in ranges), max(end for _, end in ranges))]
        for start, end in ranges:
            if self.counter is not None:
                self.counter.invalidate(start, end)
            self.text_changed(start, end)
        view.adopt()

    def read_code(self, address: int, size: int) -> bytes:
        """Code as this vCPU sees it."""
        return self.view.apply(address, self.machine.read(address, size))

    def text_changed(self, start: int, end: int) -> None:
        """Flush translations of text that was changed other than by a pending write."""
        if self._all_stale:
            return
        if len(self._stale) == _MANY_STALE or end - start > _MANY_STALE * PAGE_SIZE:
            self._all_stale = True
        else:
            self._stale.append((start, end))

    def mappings_changed(self) -> None:
        """Flush address translations that the engine has cached."""
        self._tlb_stale = True

    def _synchronise(self) -> None:
        view = self.view
        if view.stale:
            fresh = view.build()
            libunicorn.flush_tlb(self._handle)
            self._tlb_stale = False
            for page in fresh:
                self._remove_translations(page << PAGE_SHIFT, page + 1 << PAGE_SHIFT)
        if self._tlb_stale:
            libunicorn.flush_tlb(self._handle)
            self._tlb_stale = False
        if self._all_stale:
            libunicorn.flush_translations(self._handle)
            self._stale.clear()
            self._all_stale = False
        elif self._stale:
            hidden = view.private_pages
            kept = []
            for start, end in self._stale:
                for page in range(start >> PAGE_SHIFT, (end - 1 >> PAGE_SHIFT) + 1):
                    part = max(start, page << PAGE_SHIFT), min(end, page + 1 << PAGE_SHIFT)
                    if page in hidden:
                        kept.append(part)
                    else:
                        self._remove_translations(*part)
            self._stale = kept

    def _remove_translations(self, start: int, end: int) -> None:
        entry = self.machine.page_entry(start)
        if entry and not entry & NX:
            libunicorn.remove_translations(self._handle, start, end)
