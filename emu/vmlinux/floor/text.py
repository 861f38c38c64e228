"""Memory for generated code, and the last step of every change of live text.

Contract: ``execmem_alloc(type, size)`` (6.10 and later) and ``module_alloc(size)`` give whole pages within reach of the
kernel's text; they are not given back. ``__text_poke(func, addr, src, len)`` is the only writer of live text (before
``system_state`` says so the kernel writes by itself, in ``text_poke_early()``): it is noted as a text write. The int3
steps of ``text_poke_bp_batch()`` and ``smp_text_poke_batch_finish()``, their emulation in the handler,
``bpf_arch_text_copy()`` and the program packs are the kernel's own. Permissions of pages are not modelled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from emu.vmlinux.floor.state import STATE, TEXT_NEXT
from emu.vmlinux.floor.table import Constant, Group, Host, Native

if TYPE_CHECKING:
    from emu.vmlinux.machine import KernelMachine
    from emu.vmlinux.unbooted_machine import UnbootedMachine

__all__ = ["GROUP"]


def _pages(size_register: str) -> str:
    return f"""
        movabs r8, {STATE:#x}
        mov rax, qword ptr [r8+{TEXT_NEXT - STATE}]
        lea rcx, [rax+{size_register}+0xfff]
        and rcx, -4096
        mov qword ptr [r8+{TEXT_NEXT - STATE}], rcx
        ret
    """


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
        Native("", "execmem_alloc execmem_alloc_rw", lambda machine: _pages("rsi")),
        Native("", "module_alloc", lambda machine: _pages("rdi")),
        Native(
            "",
            "execmem_update_copy",
            lambda machine: "mov rax, rdi\nmov rcx, rdx\ncld\nrep movsb byte ptr [rdi], byte ptr [rsi]\nret",
        ),
        Constant("execmem_free module_memfree execmem_restore_rox execmem_make_temp_rw"),
        Host("__text_poke", _text_poke),
        Constant(
            "set_memory_rox set_memory_x set_memory_ro set_memory_rw set_memory_nx set_vm_flush_reset_perms "
            "set_direct_map_invalid_noflush set_direct_map_default_noflush set_direct_map_valid_noflush "
            "flush_tlb_kernel_range vm_unmap_aliases change_page_attr_set_clr"
        ),
    ),
)
