"""Where return addresses are: how far rsp and rbp are below the caller's frame, at each instruction of an image.

Found from the code alone: pushes, pops, additions to rsp, frame pointers, along jumps. What a patched site does is what
its image says, since both leave rsp alone.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

import capstone
from capstone import x86_const as x86

from asm.engines import detailed_capstone
from asm.image import Image
from emu.registers import GENERAL
from emu.stack_names import StackNames

_JUMPS = frozenset({x86.X86_INS_JMP, x86.X86_INS_LJMP})
_ENDS = frozenset({x86.X86_INS_RET, x86.X86_INS_INT3, x86.X86_INS_HLT, x86.X86_INS_UD2})


@dataclass(frozen=True, slots=True)
class Depth:
    """At an instruction: the address behind the return address is rsp + ``rsp``, and rbp + ``rbp``; None: not known.

    ``pushed``: what is on the stack: distance from that address, and the address of the push instruction.
    ``replaced``: the return value stands where the return address was.
    """

    rsp: int | None
    rbp: int | None = None
    pushed: tuple[tuple[int, int], ...] = ()
    replaced: bool = False

    def frame(self, rsp: int, rbp: int) -> int | None:
        """The address behind the return address."""
        if self.rsp is not None:
            return rsp + self.rsp
        return rbp + self.rbp if self.rbp is not None else None

    def at(self, rsp: int | None) -> "Depth":
        """The same with rsp elsewhere: what is below it is no part of the stack."""
        kept = self.pushed if rsp is None else tuple(word for word in self.pushed if word[0] >= -rsp)
        return replace(self, rsp=rsp, pushed=kept)


@lru_cache(maxsize=512)
def _depths(code: bytes, address: int, replaced_at: int | None) -> dict[int, Depth]:
    decoded = {insn.address: insn for insn in detailed_capstone().disasm(code, address)}
    found: dict[int, Depth] = {}
    todo = [(address, Depth(8))]
    while todo:
        at, depth = todo.pop()
        while at not in found and at in decoded:
            insn = decoded[at]
            found[at] = depth
            depth = _after(insn, depth)
            if at == replaced_at:
                depth = replace(depth, replaced=True)
            at += insn.size
            if insn.group(x86.X86_GRP_JUMP):
                target = insn.operands[0]
                if target.type == x86.X86_OP_IMM and address <= target.imm & (1 << 64) - 1 < address + len(code):
                    todo.append((target.imm & (1 << 64) - 1, depth))
                if insn.id in _JUMPS:
                    break
            elif insn.id in _ENDS:
                break
    return found


def depth_at(image: Image, names: StackNames | None, address: int) -> Depth | None:
    """Of an instruction; None where it can't be reached from the image's first one. ``names``: of its frame."""
    return _depths(image.code, image.address, names.replaced_at if names is not None else None).get(address)


def pushed_register(image: Image, address: int) -> str:
    """The register that a push instruction of an image saves, empty where it pushes something else."""
    line = image.line_at(address)
    operation, _, operand = line.text.partition(" ") if line is not None else ("", "", "")
    return operand.strip() if operation == "push" and operand.strip() in GENERAL else ""


def _after(insn: "capstone.CsInsn", depth: Depth) -> Depth:
    rsp = depth.rsp
    operands = insn.operands
    first = operands[0] if operands else None
    if insn.id in (x86.X86_INS_PUSH, x86.X86_INS_PUSHFQ):
        if rsp is None:
            return depth
        return replace(depth, rsp=rsp + 8, pushed=(*depth.pushed, (-rsp - 8, insn.address)))
    if insn.id in (x86.X86_INS_POP, x86.X86_INS_POPFQ):
        if first is not None and first.type == x86.X86_OP_REG and first.reg == x86.X86_REG_RBP:
            depth = replace(depth, rbp=None)
        return depth.at(None if rsp is None else rsp - 8)
    if insn.id == x86.X86_INS_LEAVE:
        below = depth.at(None if depth.rbp is None else depth.rbp - 8)
        return replace(below, rbp=None)
    if first is None or first.type != x86.X86_OP_REG or not first.access & capstone.CS_AC_WRITE:
        return depth
    if first.reg == x86.X86_REG_RBP:
        is_frame = insn.id == x86.X86_INS_MOV and operands[1].type == x86.X86_OP_REG
        return replace(depth, rbp=rsp if is_frame and operands[1].reg == x86.X86_REG_RSP else None)
    if first.reg == x86.X86_REG_RSP:
        return depth.at(_moved(insn, rsp, depth.rbp))
    return depth


def _moved(insn: "capstone.CsInsn", rsp: int | None, rbp: int | None) -> int | None:
    """Where rsp is after an instruction that sets it."""
    second = insn.operands[1] if len(insn.operands) > 1 else None
    if second is None:
        return None
    if second.type == x86.X86_OP_IMM and rsp is not None:
        if insn.id == x86.X86_INS_SUB:
            return rsp + int(second.imm)
        if insn.id == x86.X86_INS_ADD:
            return rsp - int(second.imm)
    if insn.id == x86.X86_INS_MOV and second.type == x86.X86_OP_REG and second.reg == x86.X86_REG_RBP:
        return rbp
    if insn.id == x86.X86_INS_LEA and second.type == x86.X86_OP_MEM and not second.mem.index:
        base = {x86.X86_REG_RSP: rsp, x86.X86_REG_RBP: rbp}.get(second.mem.base)
        return None if base is None else base - int(second.mem.disp)
    return None
