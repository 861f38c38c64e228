"""A program's tag: a hash of its instructions (``bpf_prog_calc_tag``, kernel/bpf/core.c)."""

import hashlib
from collections.abc import Iterable
from dataclasses import replace

from trampoline.bpf.isa.codec import encode
from trampoline.bpf.isa.insn import CALL, LD_IMM64, CallKind, Imm64, Insn

TAG_SIZE = 8


def calc_tag(insns: Iterable[Insn], hash_name: str) -> bytes:
    """The tag: eight bytes of a hash from hashlib. Map operands count as 0, so the tag does not depend on them.

    A function other than the main one is hashed after rewriting, before it is placed: calls and addresses of functions
    count as 1.
    """
    digest = hashlib.new(hash_name, encode(map(_stable, insns)), usedforsecurity=False)
    return digest.digest()[:TAG_SIZE]


def _stable(insn: Insn) -> Insn:
    if insn.code == LD_IMM64 and insn.src in (Imm64.MAP_FD, Imm64.MAP_VALUE):
        return replace(insn, imm=0)
    return insn


def before_placing(insns: Iterable[Insn]) -> list[Insn]:
    """A function's instructions in the form that its tag is computed from."""
    return [_unplaced(insn) for insn in insns]


def _unplaced(insn: Insn) -> Insn:
    if insn.code == CALL and insn.src == CallKind.SUBPROG:
        return replace(insn, imm=1)
    if insn.code == LD_IMM64 and insn.src == Imm64.FUNC:
        return replace(insn, imm=1 << 32 | 1)
    return insn
