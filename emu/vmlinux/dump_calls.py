"""System calls inside a memory image: new programs load, attach and run in the kernel of a dump.

Arguments lie in memory that the current task gets from the kernel by ``vm_mmap``, so that the task must be a process.
"""

import struct
from typing import Final

from emu.machine.address_map import PAGE_SIZE
from emu.vmlinux.btf_layout import BtfLayout
from emu.vmlinux.errors import VmlinuxError
from emu.vmlinux.kallsyms import Kallsyms
from emu.vmlinux.machine import KernelMachine
from emu.vmlinux.page_walk import PageTables
from emu.vmlinux.system_calls import SystemCalls

_ARGUMENTS_SIZE: Final = 1 << 20
_LOG_SIZE: Final = 1 << 20
_READ_WRITE, _PRIVATE_ANONYMOUS_POPULATED = 3, 0x8022
_SECONDS = 120.0
_AVX: Final = ("sha256_transform_rorx", "sha256_transform_avx", "sha256_transform_ssse3", "sha256_ni_transform")
_GENERIC: Final = ("sha256_blocks_generic", "sha256_transform_blocks")
"""The same function in C: the engine has no AVX, and programs' tags are SHA-256 in later kernels."""


class NoUserMemory(VmlinuxError):
    """The current task can't be given user memory: it is a kernel thread, or its memory is not in the image."""


class DumpCalls(SystemCalls):
    """System calls on the current task of a machine. The other CPUs are taken offline: nothing answers for them.

    ``top``: top of the task's stack, ``bottom``: its lowest address. Raises NoUserMemory.
    """

    def __init__(self, machine: KernelMachine, symbols: Kallsyms, layout: BtfLayout, *, top: int, bottom: int) -> None:
        self._machine, self._top = machine, top
        self._caller = _DumpCaller(machine, symbols, layout, top)
        self._take_others_offline(symbols)
        generic = next((symbols[name] for name in _GENERIC if name in symbols), None)
        for name in _AVX:
            if name in symbols and generic is not None:
                machine.redirect(symbols[name], generic)
        size = _ARGUMENTS_SIZE + _LOG_SIZE
        user = self._caller.call("vm_mmap", 0, 0, size, _READ_WRITE, _PRIVATE_ANONYMOUS_POPULATED, 0)
        if user < PAGE_SIZE or not self._caller.memory.is_mapped(user + size - 1):
            raise NoUserMemory(f"the current task can't be given {size} bytes of user memory (vm_mmap gave {user})")
        super().__init__(
            self._caller,
            user=user,
            arguments_size=_ARGUMENTS_SIZE,
            log_size=_LOG_SIZE,
            registers=bottom + PAGE_SIZE // 2,
        )

    def _take_others_offline(self, symbols: Kallsyms) -> None:
        memory = self._machine.memory
        memory.write(symbols["__cpu_online_mask"], struct.pack("<Q", 1 << self._machine.cpu.index))
        if "__num_online_cpus" in symbols:
            memory.write(symbols["__num_online_cpus"], struct.pack("<I", 1))

    def run_put_off_work(self) -> None:
        """Work of a task on its way back to user mode: closed files are released."""
        self._caller.call("task_work_run")


class _DumpCaller:
    """Calls of one task at full speed."""

    def __init__(self, machine: KernelMachine, symbols: Kallsyms, layout: BtfLayout, top: int) -> None:
        self._machine, self._top = machine, top
        self.symbols, self.layout = symbols, layout

    @property
    def memory(self) -> PageTables:
        """The machine's memory."""
        return self._machine.memory

    def call(self, function: str | int, *arguments: int) -> int:
        """The return value of a function, as a signed 64-bit number."""
        address = self.symbols[function] if isinstance(function, str) else function
        rax = self._machine.call(address, arguments, self._top, count=False, seconds=_SECONDS).rax
        return rax - (1 << 64) if rax >> 63 else rax
