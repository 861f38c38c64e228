"""Memory for generated code, and the last step of every change of live text.

Contract: ``execmem_alloc(type, size)`` (6.10 and later) and ``module_alloc(size)`` give whole pages, zeroed, within
reach of the kernel's text; those that are given back serve for allocations of the same size. ``__text_poke(func,
addr, src, len)`` is the only writer of live text (before ``system_state`` says so the kernel writes by itself, in
``text_poke_early()``): it is noted as a text write. The int3 steps of ``text_poke_bp_batch()`` and
``smp_text_poke_batch_finish()``, their emulation in the handler, ``bpf_arch_text_copy()`` and the program packs are
the kernel's own. Permissions of pages are not modelled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from emu.machine.address_map import PAGE_SIZE
from emu.vmlinux.floor.state import FREE_TEXT, FREE_TEXT_SLOTS, TEXT, TEXT_END, TEXT_NEXT, TEXT_PAGES
from emu.vmlinux.floor.table import Constant, Group, Host, Native

if TYPE_CHECKING:
    from emu.vmlinux.machine import KernelMachine
    from emu.vmlinux.unbooted_machine import UnbootedMachine

__all__ = ["GROUP"]


def _allocate(machine: UnbootedMachine, cpu: KernelMachine, name: str) -> int:
    """Pages that were given back come first, those of the same number; NULL when the area is full."""
    size = cpu.regs.rdi if name == "module_alloc" else cpu.regs.rsi
    memory, pages = machine.memory, max(1, size + PAGE_SIZE - 1 >> 12)
    for slot in range(FREE_TEXT, FREE_TEXT + 8 * FREE_TEXT_SLOTS, 8):
        found = memory.u64(slot)
        if found and memory.u32(_size_at(found)) == pages:
            memory.write_u64(slot, 0)
            machine.write_text(found, bytes(pages * PAGE_SIZE))
            return found
    found = memory.u64(TEXT_NEXT)
    if found + pages * PAGE_SIZE > TEXT_END:
        return 0
    memory.write_u64(TEXT_NEXT, found + pages * PAGE_SIZE)
    memory.write_u32(_size_at(found), pages)
    return found


def _size_at(address: int) -> int:
    """Place of the number of pages of an allocation."""
    return TEXT_PAGES + 4 * (address - TEXT >> 12)


def _free(machine: UnbootedMachine, cpu: KernelMachine, _name: str) -> int:
    """With every slot taken the pages are lost."""
    for slot in range(FREE_TEXT, FREE_TEXT + 8 * FREE_TEXT_SLOTS, 8):
        if cpu.regs.rdi and not machine.memory.u64(slot):
            machine.memory.write_u64(slot, cpu.regs.rdi)
            break
    return 0


def _text_poke(machine: UnbootedMachine, cpu: KernelMachine, _name: str) -> int:
    function, address, source, size = cpu.regs.rdi, cpu.regs.rsi, cpu.regs.rdx, cpu.regs.rcx
    if function == machine.symbols.get("text_poke_memset"):
        content = machine.memory.read(source, 1) * size
    else:
        content = machine.memory.read(source, size)
    machine.write_text(address, content)
    machine.text_writes.append((address, content))
    return address


GROUP = Group(
    "text",
    (
        Host("execmem_alloc execmem_alloc_rw module_alloc", _allocate),
        Host("execmem_free module_memfree", _free),
        Native(
            "",
            "execmem_update_copy",
            lambda machine: "mov rax, rdi\nmov rcx, rdx\ncld\nrep movsb byte ptr [rdi], byte ptr [rsi]\nret",
        ),
        Constant("execmem_restore_rox execmem_make_temp_rw"),
        Host("__text_poke", _text_poke),
        Constant(
            "set_memory_rox set_memory_x set_memory_ro set_memory_rw set_memory_nx set_vm_flush_reset_perms "
            "set_direct_map_invalid_noflush set_direct_map_default_noflush set_direct_map_valid_noflush "
            "flush_tlb_kernel_range vm_unmap_aliases change_page_attr_set_clr"
        ),
    ),
)
