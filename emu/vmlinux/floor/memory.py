"""Allocators: ``kmalloc``, ``vmalloc``, slab caches and pages from one heap.

Contract: powers of two from 64 bytes on, aligned to their size up to a page; whole pages for vmalloc and the page
allocator; always zeroed. Size 0 gives ``ZERO_SIZE_PTR``, more than 1 GiB NULL. A freed object is poisoned
(``POISON_FREE``); a write to a free object, a double free and a free of no object end the kernel with a typed error.
GFP flags, nodes, memory cgroups and reclaim have no effect: no allocation fails for want of memory but for
a full heap.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from emu.host import libunicorn
from emu.vmlinux.floor.state import (
    CLASSES,
    FREE_LISTS,
    FREED,
    HEAP,
    HEAP_END,
    HEAP_NEXT,
    HEAP_SIZE,
    POISON,
    POISONED,
    STATE,
    VMAP_NEXT,
    VMEMMAP,
)
from emu.vmlinux.floor.table import Constant, Group, Host, Native
from emu.vmlinux.machine_errors import KernelDied

if TYPE_CHECKING:
    from emu.vmlinux.machine import KernelMachine
    from emu.vmlinux.unbooted_machine import UnbootedMachine

__all__ = ["GROUP", "allocate", "live_objects", "release"]

_ZERO_SIZE_PTR = 16
_PAGE = 4096


def _allocate(_machine: UnbootedMachine) -> str:
    """Rdi: size. Uses rax, rcx, rdx, rdi, rsi, r8 to r11."""
    return f"""
        test rdi, rdi
        je zero
        cmp rdi, {HEAP_SIZE:#x}
        ja fail
        lea rax, [rdi-1]
        or rax, 63
        bsr rcx, rax
        inc ecx
        movabs r8, {STATE:#x}
        mov edx, 1
        shl rdx, cl
        mov rax, qword ptr [r8+rcx*8+{FREE_LISTS - STATE:#x}]
        test rax, rax
        je bump
        mov r9, qword ptr [rax]
        mov qword ptr [r8+rcx*8+{FREE_LISTS - STATE:#x}], r9
        mov r9, rax
        movabs r11, {HEAP:#x}
        sub rax, r11
        shr rax, 6
        movabs r11, {CLASSES:#x}
        mov byte ptr [r11+rax], cl
        lea rdi, [r9+8]
        mov ecx, {POISONED // 8 - 1}
        cmp rdx, {POISONED}
        jae check
        lea rcx, [rdx-8]
        shr rcx, 3
    check:
        movabs rax, {POISON * 0x0101010101010101:#x}
        cld
        repe scasq rax, qword ptr [rdi]
        jne changed
        mov rdi, r9
        mov rcx, rdx
        shr rcx, 3
        xor eax, eax
        rep stosq qword ptr [rdi], rax
        mov rax, r9
        ret
    bump:
        mov r10d, 4095
        lea r11, [rdx-1]
        cmp r11, r10
        cmova r11, r10
        mov r9, qword ptr [r8+{HEAP_NEXT - STATE}]
        add r9, r11
        not r11
        and r9, r11
        lea r10, [r9+rdx]
        cmp r10, qword ptr [r8+{HEAP_END - STATE}]
        ja fail
        mov qword ptr [r8+{HEAP_NEXT - STATE}], r10
        mov rax, r9
        movabs r11, {HEAP:#x}
        sub r9, r11
        shr r9, 6
        movabs r11, {CLASSES:#x}
        mov byte ptr [r11+r9], cl
        ret
    zero:
        mov eax, {_ZERO_SIZE_PTR}
        ret
    fail:
        xor eax, eax
        ret
    changed:
        mov rax, r9
        jmp write_after_free
    """


def _free(_machine: UnbootedMachine) -> str:
    """Rdi: the object, NULL or ZERO_SIZE_PTR."""
    return f"""
        cmp rdi, {_ZERO_SIZE_PTR}
        jbe out
        mov rax, rdi
        movabs r11, {HEAP:#x}
        sub rax, r11
        cmp rax, {HEAP_SIZE:#x}
        jae bad
        shr rax, 6
        movabs r11, {CLASSES:#x}
        movzx ecx, byte ptr [r11+rax]
        lea edx, [rcx-1]
        cmp edx, {FREED - 1}
        jae bad
        or byte ptr [r11+rax], {FREED:#x}
        movabs r8, {STATE:#x}
        mov rax, qword ptr [r8+rcx*8+{FREE_LISTS - STATE:#x}]
        mov qword ptr [rdi], rax
        mov qword ptr [r8+rcx*8+{FREE_LISTS - STATE:#x}], rdi
        mov edx, 1
        shl rdx, cl
        mov ecx, {POISONED // 8 - 1}
        cmp rdx, {POISONED}
        jae fill
        lea rcx, [rdx-8]
        shr rcx, 3
    fill:
        add rdi, 8
        movabs rax, {POISON * 0x0101010101010101:#x}
        cld
        rep stosq qword ptr [rdi], rax
    out:
        ret
    bad:
        jmp bad_free
    """


def _size_of(_machine: UnbootedMachine) -> str:
    """ksize(): 0 for NULL and ZERO_SIZE_PTR, which copy_array() of the verifier depends on."""
    return f"""
        xor eax, eax
        cmp rdi, {_ZERO_SIZE_PTR}
        jbe out
        mov rax, rdi
        movabs r11, {HEAP:#x}
        sub rax, r11
        shr rax, 6
        movabs r11, {CLASSES:#x}
        movzx ecx, byte ptr [r11+rax]
        mov eax, 1
        shl rax, cl
    out:
        ret
    """


def _from_cache(machine: UnbootedMachine) -> str:
    size, constructor = machine.layout.offset("kmem_cache", "object_size"), machine.layout.offset("kmem_cache", "ctor")
    return f"""
        push rdi
        test rdi, rdi
        je large
        mov edi, dword ptr [rdi+{size:#x}]
        jmp take
    large:
        mov edi, {_PAGE}
    take:
        call allocate
        pop rdi
        test rdi, rdi
        je out
        test rax, rax
        je out
        mov rcx, qword ptr [rdi+{constructor:#x}]
        test rcx, rcx
        je out
        push rax
        mov rdi, rax
        call rcx
        pop rax
    out:
        ret
    """


def _resize(pages: bool) -> str:
    return f"""
        push rbx
        push r12
        push rdi
        mov rbx, rdi
        mov r12, rsi
        mov rdi, rsi
        call {"allocate_pages" if pages else "allocate"}
        cmp rbx, {_ZERO_SIZE_PTR}
        jbe done
        test rax, rax
        je done
        push rax
        mov rdi, rbx
        call size_of
        cmp rax, r12
        cmova rax, r12
        mov rcx, rax
        mov rdi, qword ptr [rsp]
        mov rsi, rbx
        cld
        rep movsb byte ptr [rdi], byte ptr [rsi]
        mov rdi, rbx
        call release
        pop rax
    done:
        pop rdi
        pop r12
        pop rbx
        ret
    """


_ORDER_TO_SIZE = f"""
        mov ecx, esi
        mov edi, {_PAGE}
        shl rdi, cl
"""


def _page_of(_machine: UnbootedMachine) -> str:
    return f"""{_ORDER_TO_SIZE}
        call allocate
        test rax, rax
        je out
        movabs r11, {HEAP:#x}
        sub rax, r11
        shr rax, 6
        movabs r11, {VMEMMAP:#x}
        add rax, r11
    out:
        ret
    """


def _bad_free(machine: UnbootedMachine, cpu: KernelMachine, _name: str) -> int:
    address = cpu.regs.rdi
    offset = address - HEAP
    known = machine.memory.read(CLASSES + (offset >> 6), 1)[0] if 0 <= offset < HEAP_SIZE else 0
    deed = "double free" if known & FREED else "free of what was not allocated"
    raise cpu.failure(KernelDied, f"{deed}: {address:#x}")


def _write_after_free(machine: UnbootedMachine, cpu: KernelMachine, _name: str) -> int:
    address, changed = cpu.regs.rax, cpu.regs.rdi - 8
    raise cpu.failure(
        KernelDied,
        f"write after free: byte {changed - address} of the freed object at {address:#x}, seen by its allocation",
    )


def _create_cache(machine: UnbootedMachine, cpu: KernelMachine, name: str) -> int:
    """A kmem_cache: only its name, object size and constructor matter."""
    offset, memory = machine.layout.offset, machine.memory
    cache = allocate(machine, machine.layout.size("kmem_cache"))
    memory.write_u32(cache + offset("kmem_cache", "object_size"), cpu.regs.rsi)
    memory.write_u32(cache + offset("kmem_cache", "size"), cpu.regs.rsi)
    memory.write_u64(cache + offset("kmem_cache", "name"), cpu.regs.rdi)
    constructor = 0
    if name == "__kmem_cache_create_args":
        if cpu.regs.rdx:
            constructor = memory.u64(cpu.regs.rdx + offset("kmem_cache_args", "ctor"))
    elif name == "kmem_cache_create":
        constructor = cpu.regs.r8
    else:  # kmem_cache_create_usercopy(): the eighth argument
        constructor = memory.u64(cpu.regs.rsp + 16)
    memory.write_u64(cache + offset("kmem_cache", "ctor"), constructor)
    return cache


def _vmap(machine: UnbootedMachine, cpu: KernelMachine, _name: str) -> int:
    """The pages side by side; a page can occur several times (the ring buffer's is mapped twice)."""
    memory, pages, count = machine.memory, cpu.regs.rdi, cpu.regs.rsi
    address = memory.u64(VMAP_NEXT)
    memory.write_u64(VMAP_NEXT, address + (count + 1) * _PAGE)
    for index in range(count):
        page = memory.u64(pages + 8 * index)
        memory.map_page(address + index * _PAGE, HEAP + ((page - VMEMMAP) << 6))
    for each in machine.cpus:
        libunicorn.flush_tlb(each.engine.handle)
    return address


def allocate(machine: UnbootedMachine, size: int) -> int:
    """An object of at least ``size`` zeroed bytes for the host's own use, as kmalloc() would give it."""
    memory = machine.memory
    kind = max(6, (max(size, 1) - 1).bit_length())
    found = memory.u64(FREE_LISTS + 8 * kind)
    if found:
        memory.write_u64(FREE_LISTS + 8 * kind, memory.u64(found))
        memory.write(found, bytes(1 << kind))
    else:
        align = min(1 << kind, _PAGE)
        found = memory.u64(HEAP_NEXT) + align - 1 & -align
        memory.write_u64(HEAP_NEXT, found + (1 << kind))
    memory.write(CLASSES + (found - HEAP >> 6), bytes([kind]))
    return found


def release(machine: UnbootedMachine, address: int) -> None:
    """Free what ``allocate`` or the kernel allocated."""
    memory, at = machine.memory, CLASSES + (address - HEAP >> 6)
    kind = memory.read(at, 1)[0]
    memory.write(at, bytes([kind | FREED]))
    size = min(1 << kind, POISONED)
    memory.write(address, struct.pack("<Q", memory.u64(FREE_LISTS + 8 * kind)) + bytes([POISON]) * (size - 8))
    memory.write_u64(FREE_LISTS + 8 * kind, address)


def live_objects(machine: UnbootedMachine) -> dict[int, int]:
    """Address to size in bytes of everything that is allocated now."""
    used = machine.memory.read(CLASSES, machine.memory.u64(HEAP_NEXT) - HEAP >> 6)
    return {HEAP + (place << 6): 1 << kind for place, kind in enumerate(used) if 0 < kind < FREED}


_KMALLOC = (
    "__kmalloc __kmalloc_noprof __kmalloc_large_noprof kmalloc_large __kmalloc_large_node_noprof kmalloc_large_node "
    "__kmalloc_node __kmalloc_node_noprof __kmalloc_node_track_caller __kmalloc_node_track_caller_noprof "
    "__kmalloc_nolock_noprof kmalloc_nolock_noprof __kmalloc_flags_noprof __kvmalloc_node_noprof kvmalloc_node"
)
_VMALLOC = (
    "vmalloc vzalloc vmalloc_noprof vzalloc_noprof __vmalloc __vmalloc_noprof __vmalloc_node __vmalloc_node_noprof "
    "__vmalloc_node_range __vmalloc_node_range_noprof vmalloc_user vmalloc_user_noprof vmalloc_huge "
    "vmalloc_huge_noprof vmalloc_node vmalloc_node_noprof vzalloc_node vzalloc_node_noprof"
)

GROUP = Group(
    "memory",
    (
        Host("", _bad_free, "bad_free"),
        Host("", _write_after_free, "write_after_free"),
        Native("allocate", _KMALLOC, _allocate),
        Native(
            "allocate_pages",
            _VMALLOC,
            lambda machine: f"mov eax, {_PAGE}\ncmp rdi, rax\ncmovb rdi, rax\njmp allocate",
        ),
        # The size is the third argument, with a node before it the fourth.
        Native("", "__kmalloc_cache_noprof kmalloc_trace", lambda machine: "mov rdi, rdx\njmp allocate"),
        Native("", "__kmalloc_cache_node_noprof kmalloc_node_trace", lambda machine: "mov rdi, rcx\njmp allocate"),
        Native(
            "",
            "kmem_cache_alloc kmem_cache_alloc_noprof kmem_cache_alloc_lru kmem_cache_alloc_lru_noprof "
            "kmem_cache_alloc_node kmem_cache_alloc_node_noprof",
            _from_cache,
        ),
        Native("release", "kfree vfree kvfree vfree_atomic kfree_sensitive kvfree_sensitive kfree_nolock", _free),
        Native("", "kmem_cache_free", lambda machine: "mov rdi, rsi\njmp release"),
        Native("size_of", "ksize __ksize", _size_of),
        Native(
            "",
            "krealloc krealloc_noprof krealloc_node_align_noprof kvrealloc_noprof kvrealloc "
            "kvrealloc_node_align_noprof",
            lambda machine: _resize(pages=False),
        ),
        Native("", "vrealloc_noprof vrealloc_node_align_noprof", lambda machine: _resize(pages=True)),
        Native(
            "",
            "kmalloc_size_roundup",
            lambda machine: "lea rax, [rdi-1]\nor rax, 63\nbsr rcx, rax\ninc ecx\nmov eax, 1\nshl rax, cl\nret",
        ),
        Native(
            "",
            "__get_free_pages get_free_pages_noprof __get_free_pages_noprof",
            lambda machine: _ORDER_TO_SIZE + "jmp allocate",
        ),
        Native("", "get_zeroed_page get_zeroed_page_noprof", lambda machine: f"mov edi, {_PAGE}\njmp allocate"),
        Native("", "free_pages", lambda machine: "jmp release"),
        Native(
            "",
            "alloc_pages __alloc_pages alloc_pages_noprof __alloc_pages_noprof __alloc_frozen_pages_noprof "
            "alloc_frozen_pages_noprof",
            _page_of,
        ),
        Native(
            "",
            "__free_pages free_frozen_pages ___free_pages free_pages_nolock",
            lambda machine: (
                f"""
                movabs r11, {VMEMMAP:#x}
                sub rdi, r11
                shl rdi, 6
                movabs r11, {HEAP:#x}
                add rdi, r11
                jmp release
            """
            ),
        ),
        Host("__kmem_cache_create_args kmem_cache_create kmem_cache_create_usercopy", _create_cache),
        Host("vmap", _vmap),
        Constant("kmem_cache_destroy kmem_cache_shrink vunmap find_vm_area"),
        Constant("kmemleak_alloc kmemleak_free kmemleak_not_leak kmemleak_vmalloc"),
        # No memory cgroups: bpf_mem_alloc_init() of 7.2 would follow the pointer.
        Constant("current_obj_cgroup get_mem_cgroup_from_mm get_mem_cgroup_from_current get_obj_cgroup_from_current"),
        # Pages: the ring buffer refuses to be made where there are none.
        Constant("si_mem_available nr_free_buffer_pages", 1 << 20),
    ),
)
