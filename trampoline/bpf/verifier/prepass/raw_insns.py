"""Decoder of a program's bytes as the kernel accepts them: any codes and fields; verification rejects invalid ones."""

from errno import EINVAL
from struct import Struct

from trampoline.bpf.isa.insn import LD_IMM64, Insn
from trampoline.bpf.verifier.errors import VerifierError

_SLOT = Struct("<BBhi")


def decode_program(data: bytes) -> tuple[Insn, ...]:
    """Decode bytes as instructions.

    Raises VerifierError for bytes that an ``Insn`` cannot represent: an LD_IMM64 without its second slot, or whose
    second slot has more than an immediate. ``bpf.codec.decode`` is for programs that should be valid.
    """
    insns = []
    slots = enumerate(_SLOT.iter_unpack(data[: len(data) & ~7]))
    for slot, (code, registers, off, imm) in slots:
        if code == LD_IMM64:
            _, second = next(slots, (0, None))
            if second is None:
                raise VerifierError(EINVAL, "last insn is not an exit or jmp", slot)
            if any(second[:3]):
                raise VerifierError(EINVAL, "invalid bpf_ld_imm64 insn", slot)
            imm = (second[3] & 0xFFFFFFFF) << 32 | imm & 0xFFFFFFFF
        insns.append(Insn(code, registers & 15, registers >> 4, off, imm))
    return tuple(insns)
