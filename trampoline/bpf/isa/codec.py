"""eBPF programs as bytes."""

from collections.abc import Iterable
from struct import Struct

from trampoline.bpf.errors import BytecodeError
from trampoline.bpf.isa.forms import fault
from trampoline.bpf.isa.insn import LD_IMM64, Insn

SLOT_SIZE = 8

# A slot, little endian:
#
#    byte 0     1      2  3      4  5  6  7
#   +------+---+---+---------+---------------+
#   | code |src|dst|   off   |      imm      |   src is the upper half of its byte
#   +------+---+---+---------+---------------+
#
# LD_IMM64 has a second slot, zero but for its imm: the upper half of the immediate.
_SLOT = Struct("<BBhi")


def encode(insns: Iterable[Insn]) -> bytes:
    """Encode instructions as bytes."""
    out = bytearray()
    for insn in insns:
        registers = insn.src << 4 | insn.dst
        if insn.code == LD_IMM64:
            out += insn.code.to_bytes() + registers.to_bytes() + insn.off.to_bytes(2, "little", signed=True)
            out += (insn.imm & 0xFFFFFFFF).to_bytes(4, "little") + bytes(4) + (insn.imm >> 32).to_bytes(4, "little")
        else:
            out += _SLOT.pack(insn.code, registers, insn.off, insn.imm)
    return bytes(out)


def decode(data: bytes, *, rewritten: bool = False) -> tuple[Insn, ...]:
    """Decode bytes as instructions; ``rewritten`` also accepts those that only the verifier creates.

    Raises BytecodeError with the slot for bytes that are not an instruction.
    """
    if len(data) % SLOT_SIZE:
        raise BytecodeError(f"{len(data) % SLOT_SIZE} bytes are left over, a slot has 8", len(data) // SLOT_SIZE)
    insns = []
    slots = enumerate(_SLOT.iter_unpack(data))
    for slot, (code, registers, off, imm) in slots:
        if code == LD_IMM64:
            _, second = next(slots, (0, None))
            if second is None:
                raise BytecodeError("the second slot of LD_IMM64 is missing", slot)
            if any(second[:3]):
                raise BytecodeError("the second slot of LD_IMM64 has more than an immediate", slot + 1)
            imm = (second[3] & 0xFFFFFFFF) << 32 | imm & 0xFFFFFFFF
        insn = Insn(code, registers & 15, registers >> 4, off, imm)
        if reason := fault(insn, rewritten=rewritten):
            raise BytecodeError(reason, slot)
        insns.append(insn)
    return tuple(insns)
