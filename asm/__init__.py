"""x86_64 machine code as a value: text to bytes, bytes to instructions, an image with its listing."""

from asm.assembler import assemble
from asm.decode import Instruction, decode, image_of, instruction_count, instruction_starts
from asm.encodings import (
    CALL_DEPTH_ACCOUNT_SIZE,
    ENDBR64,
    INT3,
    NOP5,
    NOPS,
    call_depth_account,
    call_rel32,
    emit_nops,
    jcc_rel8,
    jcc_rel32,
    jmp_rel8,
    jmp_rel32,
)
from asm.errors import AsmError, AssemblySyntaxError, DisplacementError, EncodingMismatch
from asm.image import Image, Line

__all__ = [
    "CALL_DEPTH_ACCOUNT_SIZE",
    "ENDBR64",
    "INT3",
    "NOP5",
    "NOPS",
    "AsmError",
    "AssemblySyntaxError",
    "DisplacementError",
    "EncodingMismatch",
    "Image",
    "Instruction",
    "Line",
    "assemble",
    "call_depth_account",
    "call_rel32",
    "decode",
    "emit_nops",
    "image_of",
    "instruction_count",
    "instruction_starts",
    "jcc_rel8",
    "jcc_rel32",
    "jmp_rel8",
    "jmp_rel32",
]
