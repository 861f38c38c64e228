"""A vCPU that runs an unbooted kernel's code in ring 0: calls from the host, exceptions through the kernel's own entries.

The engine delivers no exceptions. Here the frame that hardware would push is pushed and RIP set to the kernel's entry
(``asm_exc_int3``, ``asm_exc_invalid_op``, ``asm_exc_page_fault``): int3 handling, WARN and exception-table fix-ups up to
``iretq`` are then the kernel's own code.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from unicorn import Uc, UcError
from unicorn.unicorn_const import (
    UC_ARCH_X86,
    UC_HOOK_CODE,
    UC_HOOK_INSN,
    UC_HOOK_INTR,
    UC_MODE_64,
    UC_PROT_ALL,
)
from unicorn.x86_const import (
    UC_CPU_X86_SKYLAKE_SERVER,
    UC_X86_INS_SYSCALL,
    UC_X86_REG_CR0,
    UC_X86_REG_CR2,
    UC_X86_REG_CR3,
    UC_X86_REG_CR4,
    UC_X86_REG_CS,
    UC_X86_REG_EFLAGS,
    UC_X86_REG_GDTR,
    UC_X86_REG_GS_BASE,
    UC_X86_REG_MSR,
    UC_X86_REG_R8,
    UC_X86_REG_R9,
    UC_X86_REG_R10,
    UC_X86_REG_R11,
    UC_X86_REG_R12,
    UC_X86_REG_R13,
    UC_X86_REG_R14,
    UC_X86_REG_R15,
    UC_X86_REG_RAX,
    UC_X86_REG_RBP,
    UC_X86_REG_RBX,
    UC_X86_REG_RCX,
    UC_X86_REG_RDI,
    UC_X86_REG_RDX,
    UC_X86_REG_RIP,
    UC_X86_REG_RSI,
    UC_X86_REG_RSP,
    UC_X86_REG_SS,
)

from emu.vmlinux.errors import KernelDied, Overlong

if TYPE_CHECKING:
    from emu.vmlinux.guest_memory import GuestMemory

__all__ = ["ARGUMENTS", "Vcpu", "signed"]

ARGUMENTS = ("rdi", "rsi", "rdx", "rcx", "r8", "r9")
_REGISTERS = {
    "rax": UC_X86_REG_RAX, "rbx": UC_X86_REG_RBX, "rcx": UC_X86_REG_RCX, "rdx": UC_X86_REG_RDX,
    "rsi": UC_X86_REG_RSI, "rdi": UC_X86_REG_RDI, "rbp": UC_X86_REG_RBP, "rsp": UC_X86_REG_RSP,
    "r8": UC_X86_REG_R8, "r9": UC_X86_REG_R9, "r10": UC_X86_REG_R10, "r11": UC_X86_REG_R11,
    "r12": UC_X86_REG_R12, "r13": UC_X86_REG_R13, "r14": UC_X86_REG_R14, "r15": UC_X86_REG_R15,
    "rip": UC_X86_REG_RIP, "rflags": UC_X86_REG_EFLAGS,
}  # fmt: skip
_KERNEL_CS, _KERNEL_DS = 0x10, 0x18
_EFER, _LSTAR_ENABLED_NX_LMA = 0xC0000080, 0xD01
_INT3, _GENERAL_PROTECTION, _PAGE_FAULT = 3, 13, 14
_ENTRIES = {
    0: ("asm_exc_divide_error", False),
    _INT3: ("asm_exc_int3", False),
    6: ("asm_exc_invalid_op", False),
    _GENERAL_PROTECTION: ("asm_exc_general_protection", True),
    _PAGE_FAULT: ("asm_exc_page_fault", True),
}
_MASK = (1 << 64) - 1
_INSTRUCTION_FETCH = 0x10
_TRAP_FLAG_AND_INTERRUPTS = 0x300


def signed(value: int) -> int:
    """A 64-bit register as a signed number."""
    value &= _MASK
    return value - (1 << 64) if value >> 63 else value


class Vcpu:
    """One CPU: registers by name (``cpu["rdi"]``), calls, exceptions. ``entries`` gives exception entries' addresses.

    ``stop`` is the guest address to which called functions return; ``on_host_call`` is called with the number that a
    host function's stub left in r11 and gives what goes into rax.
    """

    def __init__(
        self,
        memory: GuestMemory,
        number: int,
        entries: Mapping[str, int],
        stop: int,
        on_host_call: Callable[[Vcpu, int], int | None],
        describe: Callable[[int], str],
    ) -> None:
        self.memory = memory
        self.number = number
        self.stop = stop
        self.exceptions: dict[int, int] = {}
        self._entries = {
            vector: (entries[name], error) for vector, (name, error) in _ENTRIES.items() if name in entries
        }
        self._on_host_call = on_host_call
        self._describe = describe
        self._raised: BaseException | None = None
        self._vector: int | None = None
        self.uc = uc = Uc(UC_ARCH_X86, UC_MODE_64)
        uc.ctl_set_cpu_model(UC_CPU_X86_SKYLAKE_SERVER)  # the default model refuses stac and clac
        uc.ctl_set_tcg_buffer_size(64 << 20)
        for backing in memory.backings:
            uc.mem_map_ptr(backing.region.physical, backing.region.size, UC_PROT_ALL, backing.pointer)
        uc.hook_add(UC_HOOK_INSN, self._host_call, None, 1, 0, UC_X86_INS_SYSCALL)
        uc.hook_add(UC_HOOK_INTR, self._interrupted)

    def start_paging(self) -> None:
        """Load CR3, CR4, EFER and CR0, after the memory's page tables were written."""
        uc = self.uc
        uc.reg_write(UC_X86_REG_CR3, self.memory.root)
        uc.reg_write(UC_X86_REG_CR4, 0x6A0)  # PAE, PGE, OSFXSR, OSXMMEXCPT
        uc.reg_write(UC_X86_REG_MSR, (_EFER, _LSTAR_ENABLED_NX_LMA))
        uc.reg_write(UC_X86_REG_CR0, 0x80040033)  # PG, AM, NE, ET, MP, PE; not WP: text is written where it stands

    def load_segments(self, gdt: int, per_cpu: int) -> None:
        """Load the kernel's GDT, CS and SS, then the GS base, which loading segments clears: from here on iretq works."""
        uc = self.uc
        uc.reg_write(UC_X86_REG_GDTR, (0, gdt, 127, 0))
        uc.reg_write(UC_X86_REG_CS, _KERNEL_CS)
        uc.reg_write(UC_X86_REG_SS, _KERNEL_DS)
        uc.reg_write(UC_X86_REG_GS_BASE, per_cpu)

    def __getitem__(self, register: str) -> int:
        return int(self.uc.reg_read(_REGISTERS[register]))

    def __setitem__(self, register: str, value: int) -> None:
        self.uc.reg_write(_REGISTERS[register], value & _MASK)

    def forget(self, address: int, size: int) -> None:
        """Throw away what was translated from changed code."""
        self.uc.ctl_remove_cache(address, address + size)

    def flush_tlb(self) -> None:
        """Take note of changed page tables."""
        self.uc.ctl_flush_tlb()

    def redirect(self, address: int, target: int) -> None:
        """Go to ``target`` whenever ``address`` is about to be executed, without changing its bytes."""

        def go(uc: Uc, _address: int, _size: int, _data: object) -> None:
            uc.reg_write(UC_X86_REG_RIP, target)

        self.uc.hook_add(UC_HOOK_CODE, go, None, address, address)

    def call(self, function: int, arguments: tuple[int, ...], stack: int, seconds: float) -> int:
        """Call a function with up to six arguments on the stack that ends at ``stack``; its rax as a signed number.

        Raises what a host function raised, :class:`KernelDied` for exceptions that the kernel has no entry for,
        :class:`Overlong` after ``seconds``.
        """
        self.memory.write_u64(stack - 8, self.stop)
        self["rsp"] = stack - 8
        for register, value in zip(ARGUMENTS, arguments, strict=False):
            self[register] = value
        self["rax"] = 0
        self["rflags"] = 0x202
        self.run(function, seconds)
        return signed(self["rax"])

    def run(self, address: int, seconds: float) -> None:
        """Run from an address until the called function returns."""
        uc, limit = self.uc, int(seconds * 1e6)
        while True:
            self._raised = self._vector = None
            failure: UcError | None = None
            try:
                uc.emu_start(address, self.stop, limit)
            except UcError as error:
                failure = error
            if self._raised is not None:
                raise self._raised
            address = self["rip"]
            if failure is None:
                if address == self.stop:
                    return
                raise Overlong(f"no end after {seconds:g} s, at {self._describe(address)}", self.callers())
            # ud2 and ud1 end the engine's run with RIP on them; for anything else this is not an exception.
            self.deliver(6, failure)
            address = self["rip"]

    def deliver(self, vector: int, cause: object = None) -> None:
        """Push an exception's frame and go to the kernel's entry for it."""
        self.exceptions[vector] = self.exceptions.get(vector, 0) + 1
        rip, rsp, flags = self["rip"], self["rsp"], self["rflags"]
        entry = self._entries.get(vector)
        if entry is None or (vector == 6 and not self._is_undefined(rip)):
            raise KernelDied(f"{cause or f'exception {vector}'} at {self._describe(rip)}", self.callers())
        frame = struct.pack("<5Q", rip, _KERNEL_CS, flags, rsp, _KERNEL_DS)
        if entry[1]:
            fetch = vector == _PAGE_FAULT and self.uc.reg_read(UC_X86_REG_CR2) == rip
            frame = struct.pack("<Q", _INSTRUCTION_FETCH if fetch else 0) + frame
        top = (rsp & ~15) - len(frame)
        self.memory.write(top, frame)
        self["rsp"] = top
        self["rflags"] = flags & ~_TRAP_FLAG_AND_INTERRUPTS
        self["rip"] = entry[0]

    def _is_undefined(self, rip: int) -> bool:
        """Whether ud2, ud1 (7.x: WARN with a format) or udb stands there."""
        code = self.memory.read(rip, 6).lstrip(b"\x67")
        if 0x40 <= code[0] <= 0x4F:
            code = code[1:]
        return code[:2] in (b"\x0f\x0b", b"\x0f\xb9") or code[:1] == b"\xd6"

    def _host_call(self, uc: Uc, _data: object) -> None:
        try:
            value = self._on_host_call(self, self["r11"] & 0xFFFFFFFF)
        except BaseException as error:
            self._raised = error
            uc.emu_stop()
            return
        if value is not None:
            self["rax"] = value

    def _interrupted(self, uc: Uc, vector: int, _data: object) -> None:
        try:
            self.deliver(vector)
        except BaseException as error:
            self._raised = error
            uc.emu_stop()

    def callers(self, most: int = 12) -> tuple[str, ...]:
        """Kernel text addresses on the stack, innermost first: return addresses, and what only looks like one."""
        found: list[str] = []
        rsp = self["rsp"]
        try:
            words = self.memory.read(rsp, 0x800 - (rsp & 7))
        except Exception:
            return ()
        for (word,) in struct.iter_unpack("<Q", words[: len(words) & ~7]):
            name = self._describe(word)
            if "+" in name and not name.startswith("0x"):
                found.append(name)
                if len(found) == most:
                    break
        return tuple(found)
