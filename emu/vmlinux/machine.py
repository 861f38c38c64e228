"""The Unicorn machine that runs a real kernel's code on that kernel's own page tables.

Exceptions go through the guest's interrupt descriptor table: the frame is built here, the handler and its iretq run as
they are. Time is the host's (rdtsc can't be intercepted), no interrupt arrives, and no other CPU runs.
"""

import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, NoReturn, cast

from unicorn import unicorn_const as uc_const
from unicorn import x86_const as x86
from unicorn.unicorn_py3.arch.intel import UcIntel
from unicorn.unicorn_py3.unicorn import Uc

from emu.errors import NotMapped
from emu.host import libunicorn
from emu.machine.address_map import ADDRESS_MASK
from emu.machine.engine import Engine, Exit
from emu.machine.faults import FAULTS, INT3, PAGE_FAULT, kind_of
from emu.machine.registers import ARGUMENTS, GENERAL
from emu.vmlinux.bug_table import BugTable
from emu.vmlinux.code_names import CodeNames
from emu.vmlinux.devices import Devices
from emu.vmlinux.dump_errors import MissingPage
from emu.vmlinux.machine_errors import KernelDied, LimitReached, NotInDump, RunError, StateUnusable, WouldSleep
from emu.vmlinux.missing_instructions import TRAPPING_UD, emulate
from emu.vmlinux.page_fault import error_code
from emu.vmlinux.page_walk import PageTables
from emu.vmlinux.program_counters import ProgramCounters
from emu.vmlinux.run import KernelMessage, Run, TakenException

INVALID_OPCODE: Final = 6
_WITH_ERROR_CODE: Final = frozenset({8, 10, 11, 12, 13, 14, 17, 21})
_KERNEL_CS, _KERNEL_SS = 0x10, 0x18
"""``__KERNEL_CS``, ``__KERNEL_DS`` (arch/x86/include/asm/segment.h)."""
_EFER, _KERNEL_GS_BASE = 0xC0000080, 0xC0000102
_EFER_VALUE = 0xD01
"""NXE, LMA, LME, SCE."""
_CR0 = 0x80050033
_CR4 = 1 << 5 | 1 << 7 | 1 << 9 | 1 << 10 | 1 << 16
_CR4_KNOWN = 0x7F77FF | 1 << 12
"""Bits that Unicorn's CPU has: without shadow stacks (bit 23) and what came later."""
_CR4_LA57 = 1 << 12
_CR3_NO_FLUSH = 1 << 63
_INTERRUPTS, _TRAP, _NESTED, _RESUME = 0x200, 0x100, 0x4000, 0x10000
_FLAGS = 0x202
RETURN_ADDRESS: Final = 0xFFFFFFFFFFFFF000
"""The last page, which no kernel maps: its addresses are error numbers (``ERR_PTR``)."""
_DEATHS: Final = ("panic", "vpanic", "oops_begin", "make_task_dead", "do_exit")
_SLEEPS: Final = ("__schedule",)
_FILL: Final = 0x1111111111110000
"""Value of the registers that are no arguments of a call: an unmapped address."""
_TRANSLATION_BUFFER = 64 << 20
_DEEPEST = 2048
"""Bytes of a stack that are searched for return addresses where its start is not known."""


@dataclass(frozen=True, slots=True)
class CpuSetup:
    """System registers of the CPU to run on: guest addresses, GDT's limit in bytes, and its number."""

    index: int
    gs_base: int
    gdt: int
    gdt_limit: int
    idt: int
    tss: int
    cr0: int = _CR0
    cr4: int = _CR4


class KernelMachine:
    """One CPU on the guest memory of ``memory``. ``names`` may be replaced when code was generated.

    ``bugs`` tells WARN from BUG. Not for use from several threads.
    """

    def __init__(self, memory: PageTables, names: CodeNames, bugs: BugTable, cpu: CpuSetup) -> None:
        self.memory, self.names, self.bugs, self.cpu = memory, names, bugs, cpu
        uc = cast(UcIntel, Uc(uc_const.UC_ARCH_X86, uc_const.UC_MODE_64))
        # The first model of Unicorn with the instructions of a kernel's alternatives (SMAP, FSGSBASE, PCID, LA57).
        uc.ctl_set_cpu_model(x86.UC_CPU_X86_ICELAKE_SERVER)
        uc.ctl_set_tcg_buffer_size(_TRANSLATION_BUFFER)
        for address, size, host in memory.memory.mappable():
            uc.mem_map_ptr(address, size, uc_const.UC_PROT_ALL, host)
        uc.__dict__["memory"] = memory.memory
        self.uc = uc
        self.devices = Devices(uc, memory.memory)
        self.engine = Engine(uc)
        self.regs = self.engine.regs
        self._handle = self.engine.handle
        self._missing: int | None = None
        uc.hook_add(uc_const.UC_HOOK_MEM_UNMAPPED, self._unmapped)
        self._log: ProgramCounters | None = None
        self.pending: BaseException | None = None
        """Error for which a hook stopped the engine: raised by the interrupted call."""
        self.unusable: str | None = None
        """Reason why no call is possible until the state is reset, None while calls are possible."""
        self._stops: dict[int, Callable[[], None]] = {}
        self._stop_hooks: dict[int, int] = {}
        self._base = 0
        self._exceptions: list[TakenException] = []
        self._messages: list[KernelMessage] = []
        self.return_address = RETURN_ADDRESS
        """Address to which calls return: nothing is mapped there, so that the return faults and ends the run."""
        for name in _DEATHS:
            self._stop_where_known(name, partial(self._die, f"{name}() was called"))
        for name in _SLEEPS:
            self._stop_where_known(name, self._sleep)
        self.reset_cpu()

    # The CPU --------------------------------------------------------------------------------------------------------

    def reset_cpu(self) -> None:
        """System registers as ``cpu`` says, page tables as ``memory`` has them."""
        uc, cpu = self.uc, self.cpu
        uc.reg_write(x86.UC_X86_REG_GDTR, (0, cpu.gdt, cpu.gdt_limit, 0))
        uc.reg_write(x86.UC_X86_REG_IDTR, (0, cpu.idt, 0xFFF, 0))
        uc.msr_write(_EFER, _EFER_VALUE)
        levels = _CR4_LA57 if self.memory.levels == 5 else 0
        uc.reg_write(x86.UC_X86_REG_CR4, cpu.cr4 & _CR4_KNOWN & ~_CR4_LA57 | levels)
        uc.reg_write(x86.UC_X86_REG_CR3, self.memory.root)
        uc.reg_write(x86.UC_X86_REG_CR0, cpu.cr0)
        self._load_segments()
        self._pristine = uc.context_save()

    def _load_segments(self) -> None:
        uc = self.uc
        uc.reg_write(x86.UC_X86_REG_CS, _KERNEL_CS)
        uc.reg_write(x86.UC_X86_REG_SS, _KERNEL_SS)
        self.regs.gs_base = self.cpu.gs_base
        uc.msr_write(_KERNEL_GS_BASE, 0)

    def memory_changed(self) -> None:
        """Memory was brought to another state: forget translations of addresses and of code."""
        self.memory.forget()
        libunicorn.flush_tlb(self._handle)
        libunicorn.flush_translations(self._handle)

    def use_tables(self, root: int) -> None:
        """Run on other page tables."""
        self.memory.root = root
        self.uc.reg_write(x86.UC_X86_REG_CR3, root)

    def write_code(self, address: int, code: bytes) -> None:
        """Change text."""
        self.memory.write(address, code)
        libunicorn.flush_translations(self._handle)

    def _forget_exception(self) -> None:
        """Let the engine take the next page fault for a first one: nothing ever tells it that one was delivered."""
        saved, cr3 = self.regs.save(), self.uc.reg_read(x86.UC_X86_REG_CR3)
        gs_base, cr2 = self.regs.gs_base, self.uc.reg_read(x86.UC_X86_REG_CR2)
        self.uc.context_restore(self._pristine)
        self.regs.load(saved)
        self.regs.gs_base = gs_base
        if self.uc.reg_read(x86.UC_X86_REG_CR3) != cr3:
            self.uc.reg_write(x86.UC_X86_REG_CR3, cr3)
        self.uc.reg_write(x86.UC_X86_REG_CR2, cr2)

    # Stops ----------------------------------------------------------------------------------------------------------

    def stop_at(self, address: int, action: Callable[[], None]) -> None:
        """Call ``action`` before the instruction at an address is executed; it raises, or moves rip."""
        self._stops[address] = action
        if address not in self._stop_hooks:
            # The engine's own function is the hook: it ends the run there without entering Python.
            self._stop_hooks[address] = libunicorn.hook_add(
                self._handle, uc_const.UC_HOOK_CODE, libunicorn.EMU_STOP_ADDRESS, 0, address, address
            )
            libunicorn.flush_translations(self._handle)

    def host(self, function: str, result: int = 0) -> bool:
        """Let a function return at once with ``result``; False where the kernel has no such function."""
        address = self.names.symbols.get(function)
        if address is None:
            return False
        self.stop_at(address, lambda: self.return_from(result))
        return True

    def redirect(self, function: int, other: int) -> None:
        """Let another function run wherever a function is called."""

        def go() -> None:
            self.regs.rip = other

        self.stop_at(function, go)

    def return_from(self, value: int) -> None:
        """Leave the function that was just entered."""
        rsp = self.regs.rsp
        self.regs.rip, self.regs.rsp, self.regs.rax = self.memory.u64(rsp), rsp + 8, value

    def _stop_where_known(self, name: str, action: Callable[[], None]) -> None:
        address = self.names.symbols.get(name)
        if address is not None:
            self.stop_at(address, action)

    def _die(self, what: str) -> NoReturn:
        if self._exceptions:
            last = self._exceptions[-1]
            what += f" after a {kind_of(last.vector)} at {self.names.describe(last.rip)}"
            what += "" if last.address is None else f", which accessed {last.address:#x},"
        raise self.failure(KernelDied, what)

    def failure(self, kind: type[RunError], what: str) -> RunError:
        """An error of that kind with the place where the CPU is, to be raised."""
        return kind(what, self.names.describe(self.regs.rip), self.callers())

    def _sleep(self) -> NoReturn:
        raise WouldSleep("the task would sleep", self.names.describe(self.regs.rip), self.callers())

    def callers(self, most: int = 12) -> tuple[str, ...]:
        """Functions whose return addresses lie on the stack, innermost first; some may be stale."""
        found: list[str] = []
        rsp = self.regs.rsp
        depth = self._base - 8 - rsp
        data = self.memory.read_sparse(rsp, depth & ~7 if 0 <= depth < _DEEPEST else _DEEPEST)
        for (word,) in struct.iter_unpack("<Q", data):
            if word >> 47 == 0x1FFFF and word != self.return_address:
                name = self.names.describe(word)
                if "+" in name and not name.startswith("0x") and self._follows_call(word):
                    found.append(name)
                    if len(found) == most:
                        break
        return tuple(found)

    def _follows_call(self, address: int) -> bool:
        code = self.memory.read_sparse(address - 7, 7)
        return code[2] == 0xE8 or any(code[at] == 0xFF and code[at + 1] >> 3 & 7 == 2 for at in range(6))

    # Calls ----------------------------------------------------------------------------------------------------------

    def call(
        self,
        function: int,
        arguments: tuple[int, ...],
        stack: int,
        *,
        count: bool = True,
        limit: int | None = None,
        seconds: float = 60.0,
    ) -> Run:
        """Call a function with its stack below ``stack`` until it returns.

        ``count``: note every instruction; else the code runs at the engine's full speed. ``limit``: instructions after
        which it is given up, ``seconds``: host time. Raises KernelDied, WouldSleep, LimitReached, NotInDump; after
        these, StateUnusable until ``unusable`` is cleared after the state is restored.
        """  # fmt: skip
        if self.unusable:
            raise StateUnusable(f"{self.unusable}; reset the state, or restore a checkpoint, before the next call")
        self._set_counting(count)
        log = self._log
        if log is not None:
            log.begin(limit)
        base = stack - 8 * max(0, len(arguments) - len(ARGUMENTS)) & ~15
        frame = [self.return_address, *arguments[len(ARGUMENTS) :]]
        self.memory.write(base - 8, struct.pack(f"<{len(frame)}Q", *(word & ADDRESS_MASK for word in frame)))
        values = dict.fromkeys(GENERAL, 0)
        values.update((name, _FILL + number) for number, name in enumerate(GENERAL) if name not in ARGUMENTS)
        values.update(zip(ARGUMENTS, (word & ADDRESS_MASK for word in arguments), strict=False))
        values["rsp"] = base - 8
        self._base = base
        self._load_segments()
        self.regs.load([*(values[name] for name in GENERAL), function, _FLAGS])
        self._exceptions, self._messages = [], []
        counters: list[int] = []
        self.engine.limit(None if count else limit)
        began = time.perf_counter()
        try:
            self._drive(function, base, counters, limit, began + seconds)
        except BaseException as error:
            self.unusable = f"the last call did not return ({getattr(error, 'what', type(error).__name__)})"
            raise
        finally:
            self.memory.forget()
            self.memory.root = self.uc.reg_read(x86.UC_X86_REG_CR3) & ~_CR3_NO_FLUSH
        if log is not None:
            counters += log.take()
        return Run(
            function, self.regs.rax, time.perf_counter() - began, counters, self.names, self.memory.read_sparse,
            self.return_address, self._exceptions, self._messages,
        )  # fmt: skip

    def _set_counting(self, count: bool) -> None:
        if count and self._log is None:
            self._log = ProgramCounters(self._handle)
        elif not count and self._log is not None:
            self._log.remove()
            self._log = None

    def _drive(self, rip: int, base: int, counters: list[int], limit: int | None, deadline: float) -> None:
        """Run until the function returns, answering what comes up."""
        log = self._log
        while True:
            self._missing = None
            reached = self.engine.run(rip)
            rip = self.regs.rip
            if self.pending is not None:
                pending, self.pending = self.pending, None
                raise pending
            if reached is Exit.HALT and rip in self._stops:
                if log is not None:
                    log.drop_last(rip)
                self.memory.forget()
                self._stops[rip]()
                rip = self.regs.rip
            elif reached is Exit.INTERRUPT:
                if rip == self.return_address and self.engine.interrupt_number == PAGE_FAULT:
                    self._forget_exception()
                    if self.regs.rsp != base:
                        self._die(f"a return with the stack pointer at {self.regs.rsp:#x}, not {base:#x},")
                    return
                rip = self._interrupt(self.engine.interrupt_number, rip)
            elif reached is Exit.ERROR:
                rip = self._error(self.engine.error, rip)
            elif reached is Exit.LIMIT:
                self._give_up(f"{limit} instructions were executed and the call has not returned")
            elif reached is Exit.HALT and log is not None and log.is_full:
                counters += log.take()
                if limit is not None and len(counters) >= limit:
                    self._give_up(f"{limit} instructions were executed and the call has not returned")
                log.allow(None if limit is None else limit - len(counters))
            elif reached is Exit.HALT:
                self._die("the CPU was halted")
            if time.perf_counter() > deadline:
                self._give_up("the time that the call was given is over")

    def _give_up(self, what: str) -> NoReturn:
        raise LimitReached(what, self.names.describe(self.regs.rip), self.callers())

    # Exceptions -----------------------------------------------------------------------------------------------------

    def _interrupt(self, vector: int, rip: int) -> int:
        """Answer an exception; gives where to go on."""
        uc = self.uc
        cr3 = uc.reg_read(x86.UC_X86_REG_CR3)
        if vector == PAGE_FAULT and cr3 & _CR3_NO_FLUSH:
            # PCID's hint not to flush stays in Unicorn's CR3 and spoils the walk of the tables.
            self._forget_exception()
            uc.reg_write(x86.UC_X86_REG_CR3, cr3 & ~_CR3_NO_FLUSH)
            return rip
        if vector in FAULTS and self._log is not None:
            self._log.drop_last(rip)
        self.memory.forget()
        self.memory.root = cr3
        if vector == PAGE_FAULT:
            address = uc.reg_read(x86.UC_X86_REG_CR2)
            self._exceptions.append(TakenException(vector, rip, address))
            self._forget_exception()
            return self._deliver(vector, rip, error_code(self.memory, rip, address))
        if vector in FAULTS:
            self._forget_exception()
        self._exceptions.append(TakenException(vector, rip - 1 if vector == INT3 else rip))
        return self._deliver(vector, rip, 0)

    def _deliver(self, vector: int, rip: int, code: int) -> int:
        """Exception delivery of the CPU (Intel SDM volume 3, "Interrupt and Exception Handling")."""
        uc, memory, regs = self.uc, self.memory, self.regs
        try:
            gate = memory.read(self.cpu.idt + 16 * vector, 16)
            low, _selector, stack, kind, middle, high = struct.unpack_from("<HHBBHI", gate)
            if not kind & 0x80:
                self._die(f"{kind_of(vector)}, which the kernel has no handler for,")
            rsp, flags = regs.rsp, regs.rflags
            top = memory.u64(self.cpu.tss + 36 + 8 * ((stack & 7) - 1)) if stack & 7 else rsp
            frame = [rip, uc.reg_read(x86.UC_X86_REG_CS), flags, rsp, uc.reg_read(x86.UC_X86_REG_SS)]
            if vector in _WITH_ERROR_CODE:
                frame.insert(0, code)
            top = (top & ~15) - 8 * len(frame)
            memory.write(top, struct.pack(f"<{len(frame)}Q", *frame))
        except (NotMapped, MissingPage) as error:
            raise KernelDied(
                f"{kind_of(vector)} that can't be delivered ({error})", self.names.describe(rip), ()
            ) from None
        clear = _TRAP | _NESTED | _RESUME | (_INTERRUPTS if kind & 15 == 14 else 0)
        regs.rsp, regs.rflags = top, flags & ~clear
        handler: int = low | middle << 16 | high << 32
        regs.rip = handler
        return handler

    def _error(self, error: int, rip: int) -> int:
        """Answer what Unicorn calls an error; gives where to go on."""
        self.memory.forget()
        self.memory.root = self.uc.reg_read(x86.UC_X86_REG_CR3) & ~_CR3_NO_FLUSH
        if self._missing is not None:
            raise NotInDump(self._missing, self.names.describe(rip), self.callers())
        if error != uc_const.UC_ERR_INSN_INVALID:
            self._die(f"Unicorn's error {error}")
        code = self.memory.read_sparse(rip, 16)
        length = emulate(self.uc, code, self.cpu.index, lambda: libunicorn.flush_tlb(self._handle))
        if length:
            return self._skip(rip, length)
        if self._log is not None:
            self._log.drop_last(rip)
        site = self.bugs.find(rip)
        if site is not None and site.is_warning:
            if not self.bugs.skips(site):
                text = f"WARNING: {site.place} {site.text.strip()}"
                self._messages.append(KernelMessage(4, text.strip()))
            return self._skip(rip, _ud_length(code))
        if site is not None:
            self._die(f"kernel BUG at {site.place}:" if site.place else "kernel BUG")
        self._exceptions.append(TakenException(INVALID_OPCODE, rip))
        self._forget_exception()
        return self._deliver(INVALID_OPCODE, rip, 0)

    def _skip(self, rip: int, length: int) -> int:
        self.regs.rip = rip + length
        return rip + length

    def _unmapped(self, _uc: Uc, _access: int, address: int, _size: int, _value: int, _data: object) -> bool:
        self._missing = address
        return False

    def close(self) -> None:
        """Take the hooks out of the engine."""
        self._set_counting(False)
        self.engine.close()


def _ud_length(code: bytes) -> int:
    """Bytes of the ud2 or ud1 at a WARN."""
    at = 0
    while code[at] in (0x66, 0x67) or code[at] & 0xF0 == 0x40:
        at += 1
    if code[at : at + 2] not in TRAPPING_UD:
        return at + 1
    if code[at + 1] == 0x0B:
        return at + 2
    mod, rm = code[at + 2] >> 6, code[at + 2] & 7
    return at + 3 + (mod != 3 and rm == 4) + (4 if mod == 0 and rm == 5 else (0, 1, 4, 0)[mod])
