"""``bpf_arch_text_poke()``: patches one site of kernel text or of a BPF image between nop5, call and jmp
(arch/x86/net/bpf_jit_comp.c).
"""

import enum
from errno import EBUSY, EINVAL

from asm.encodings import ENDBR64, NOPS, call_rel32, jmp_rel32
from emu.kernel.errors import KernelError
from emu.kernel.kernel import Kernel
from emu.kernel.text.entry import SITE_SIZE


class BpfTextPokeType(enum.Enum):
    """``enum bpf_text_poke_type``; since 6.19 the old and the new instruction each have one."""

    BPF_MOD_NOP = "nop"
    BPF_MOD_CALL = "call"
    BPF_MOD_JUMP = "jmp"


def _instruction(ip: int, kind: BpfTextPokeType, target: int | None) -> bytes:
    if target is None or kind is BpfTextPokeType.BPF_MOD_NOP:
        return NOPS[SITE_SIZE]
    return call_rel32(ip, target) if kind is BpfTextPokeType.BPF_MOD_CALL else jmp_rel32(ip, target)


def bpf_arch_text_poke(
    kernel: Kernel,
    ip: int,
    old_type: BpfTextPokeType,
    new_type: BpfTextPokeType,
    old_addr: int | None,
    new_addr: int | None,
) -> int:
    """Patches the 5 bytes at ``ip`` from a call or jmp to ``old_addr`` (None: a nop5) to one to ``new_addr``.

    Returns 0 if patched, 1 if the new bytes are already there. KernelError: -EINVAL if ``ip`` is neither in kernel text
    nor in a BPF image, -EBUSY if the present bytes are not the old ones; asm.DisplacementError (-ERANGE) for a target
    beyond 2 GiB. Nothing is written then.
    """
    if not kernel.is_kernel_text(ip) and not kernel.execmem.contains(ip):
        raise KernelError(EINVAL, f"{ip:#x} is neither kernel text nor a BPF image")
    if kernel.machine.read(ip, len(ENDBR64)) in (ENDBR64, kernel.entry.sealed):
        ip += len(ENDBR64)
    old, new = _instruction(ip, old_type, old_addr), _instruction(ip, new_type, new_addr)
    with kernel.text_poke.text_mutex:
        found = kernel.machine.read(ip, SITE_SIZE)
        if found != old:
            where = kernel.kallsyms.name(ip) or hex(ip)
            raise KernelError(EBUSY, f"{where} holds {found.hex()}, not {old.hex()}")
        if found == new:
            return 1
        kernel.point_patch(ip)
        kernel.text_poke.text_poke_bp(ip, new)
    return 0
