"""Anonymous files: what ``bpf(2)`` and ``perf_event_open(2)`` give a descriptor for.

Contract: ``anon_inode_getfile(name, fops, priv, flags)`` makes a ``struct file`` that can be read and written (the BPF
system call asks for both); ``fput()`` queues the last reference's release for ``drain()``, as task work does. The table
of descriptors, ``fdget()`` and ``close_fd()`` are the kernel's own.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from emu.vmlinux.floor.memory import allocate
from emu.vmlinux.floor.table import Group, Host, Native

if TYPE_CHECKING:
    from emu.vmlinux.machine import KernelMachine
    from emu.vmlinux.unbooted_machine import UnbootedMachine

__all__ = ["GROUP"]

_O_CLOEXEC = 0x80000
_FMODE_CAN = 0x4060000
"""``FMODE_CAN_READ | FMODE_CAN_WRITE``, and that of a file that fsnotify leaves alone."""
_S_IRUSR_S_IWUSR = 0o600


def _getfile(machine: UnbootedMachine, cpu: KernelMachine, _name: str) -> int:
    memory, offset = machine.memory, machine.layout.offset
    if not machine.anonymous_inode:
        inode = machine.anonymous_inode = allocate(machine, machine.layout.size("inode"))
        memory.write(inode + offset("inode", "i_mode"), struct.pack("<H", _S_IRUSR_S_IWUSR))
        memory.write_u64(inode + offset("inode", "i_sb"), allocate(machine, machine.layout.size("super_block")))
    file, flags = allocate(machine, machine.layout.size("file")), cpu.regs.rcx & 0xFFFFFFFF
    memory.write_u64(file + offset("file", "f_op"), cpu.regs.rsi)
    memory.write_u64(file + offset("file", "private_data"), cpu.regs.rdx)
    memory.write_u32(file + offset("file", "f_flags"), flags & ~_O_CLOEXEC)
    memory.write_u32(file + offset("file", "f_mode"), (1, 2, 3, 3)[flags & 3] | _FMODE_CAN)
    memory.write_u64(file + offset("file", "f_inode"), machine.anonymous_inode)
    if machine.layout.has("file", "f_count"):  # f_ref (6.13) counts from 0
        memory.write_u64(file + offset("file", "f_count"), 1)
    return file


def _fput(machine: UnbootedMachine, cpu: KernelMachine, _name: str) -> int:
    file, memory, layout = cpu.regs.rdi, machine.memory, machine.layout
    counted = layout.has("file", "f_count")
    at = file + layout.offset("file", "f_count" if counted else "f_ref")
    count = memory.u64(at)
    memory.write_u64(at, count - 1)
    if count == (1 if counted else 0):
        machine.defer("fput", 0, file)
    return 0


def _getfd(_machine: UnbootedMachine) -> str:
    """anon_inode_getfd(): a free descriptor, the file, and the two put together."""
    return """
        push rbx
        push r12
        push r13
        push r14
        push r15
        mov r12, rdi
        mov r13, rsi
        mov r14, rdx
        mov r15d, ecx
        mov edi, ecx
        call get_unused_fd_flags
        movsxd rbx, eax
        test eax, eax
        js out
        mov rdi, r12
        mov rsi, r13
        mov rdx, r14
        mov ecx, r15d
        call anon_inode_getfile
        mov rsi, rax
        mov edi, ebx
        call fd_install
    out:
        mov rax, rbx
        pop r15
        pop r14
        pop r13
        pop r12
        pop rbx
        ret
    """


GROUP = Group(
    "files",
    (
        Host("anon_inode_getfile anon_inode_getfile_fmode anon_inode_create_getfile", _getfile),
        Native(
            "",
            "anon_inode_getfd anon_inode_create_getfd",
            _getfd,
            ("get_unused_fd_flags", "anon_inode_getfile", "fd_install"),
        ),
        Host("fput __fput_sync fput_close_sync fput_close", _fput),
    ),
)
