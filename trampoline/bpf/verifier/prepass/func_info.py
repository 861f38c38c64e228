"""Types and source lines of a program (``check_btf_func``, ``check_btf_line``, kernel/bpf/verifier.c)."""

from errno import EINVAL
from typing import NoReturn

from trampoline.bpf.btf.btf import Btf, BtfKind
from trampoline.bpf.isa.insn import Cls, Imm64, Insn, Jmp, Mode
from trampoline.bpf.program import BpfProgram
from trampoline.bpf.verifier.errors import VerifierError

TAIL_CALL = 12
"""Number of the helper bpf_tail_call."""
PSEUDO_CALL = 1
"""src of a call between BPF functions."""
_SCALARS = frozenset({BtfKind.INT, BtfKind.ENUM, BtfKind.ENUM64})


def function_starts(insns: tuple[Insn, ...]) -> list[int]:
    """Slots where functions start: 0, and targets of calls and of LD_IMM64 of functions, within the program."""
    starts, slot = {0}, 0
    total = sum(insn.slots for insn in insns)
    for insn in insns:
        if is_call(insn) and insn.src == PSEUDO_CALL:
            starts.add(slot + 1 + insn.imm)
        elif insn.slots == 2 and insn.src == Imm64.FUNC:
            low = insn.imm & 0xFFFFFFFF
            starts.add(slot + 1 + (low - (low >> 31 << 32)))
        slot += insn.slots
    return sorted(start for start in starts if 0 <= start < total)


def is_call(insn: Insn) -> bool:
    """True for a call of any kind."""
    return insn.code == Cls.JMP | Jmp.CALL


def check_btf_info(program: BpfProgram, slots: int) -> None:
    """Check ``func_info`` and ``line_info`` of a program with ``slots`` slots against its functions.

    Raises VerifierError (EINVAL) with the log's line.
    """
    starts = function_starts(program.insns)
    if not program.funcs:
        _check_abnormal_return(program.insns, starts)
    else:
        if program.btf is None:
            raise VerifierError(EINVAL, "func_info without BTF")
        _check_records(program, program.btf)
        _check_functions(program, program.btf, starts)
    _check_lines(program, starts, slots)


def _refuse(message: str) -> NoReturn:
    raise VerifierError(EINVAL, message, log=message + "\n")


def _check_abnormal_return(insns: tuple[Insn, ...], starts: list[int]) -> None:
    """Refuse LD_ABS and tail calls in functions without a type: they return to the caller with an unknown result."""
    for number, (is_packet_load, is_tail_call) in enumerate(_leaves_early(insns, starts)):
        if number and is_packet_load:
            _refuse("LD_ABS is not allowed in subprogs without BTF")
        if number and is_tail_call:
            _refuse("tail_call is not allowed in subprogs without BTF")


def _leaves_early(insns: tuple[Insn, ...], starts: list[int]) -> list[tuple[bool, bool]]:
    """For each function: True if it has LD_ABS or LD_IND, and True if it has bpf_tail_call."""
    found = [[False, False] for _ in starts]
    slot, number = 0, 0
    for insn in insns:
        while number + 1 < len(starts) and slot >= starts[number + 1]:
            number += 1
        found[number][0] |= insn.code & 7 == Cls.LD and insn.code & 0xE0 in (Mode.ABS, Mode.IND)
        found[number][1] |= is_call(insn) and insn.src == 0 and insn.imm == TAIL_CALL
        slot += insn.slots
    return [(packet, tail) for packet, tail in found]


def _check_records(program: BpfProgram, btf: Btf) -> None:
    previous = 0
    for number, info in enumerate(program.funcs):
        if number == 0 and info.slot:
            _refuse(f"nonzero insn_off {info.slot} for the first func info record")
        if number and info.slot <= previous:
            _refuse(f"same or smaller insn offset ({info.slot}) than previous func info record ({previous})")
        if not 0 < info.type_id < len(btf) or btf.type(info.type_id).kind is not BtfKind.FUNC:
            _refuse(f"invalid type id {info.type_id} in func info")
        previous = info.slot


def _check_functions(program: BpfProgram, btf: Btf, starts: list[int]) -> None:
    if len(program.funcs) != len(starts):
        _refuse("number of funcs in func_info doesn't match number of subprogs")
    leaves = _leaves_early(program.insns, starts)
    for number, (info, start) in enumerate(zip(program.funcs, starts, strict=True)):
        if info.slot != start:
            _refuse("func_info BTF section doesn't match subprog layout in BPF program")
        _, ret = btf.prototype(btf.type(info.type_id).type_id)
        if number and btf.unmodified(ret).kind not in _SCALARS:
            is_packet_load, is_tail_call = leaves[number]
            if is_packet_load:
                _refuse("LD_ABS is only allowed in functions that return 'int'.")
            if is_tail_call:
                _refuse("tail_call is only allowed in functions that return 'int'.")


def _check_lines(program: BpfProgram, starts: list[int], slots: int) -> None:
    previous, covered = 0, 0
    seconds = _second_slots(program.insns) if program.lines else frozenset()
    for number, line in enumerate(program.lines):
        if (number and line.slot <= previous) or line.slot >= slots:
            _refuse(f"Invalid line_info[{number}].insn_off:{line.slot} (prev_offset:{previous} prog->len:{slots})")
        if line.slot in seconds:
            _refuse(f"Invalid insn code at line_info[{number}].insn_off")
        if covered < len(starts):
            if line.slot == starts[covered]:
                covered += 1
            elif line.slot > starts[covered]:
                _refuse(f"missing bpf_line_info for func#{covered}")
        previous = line.slot
    if program.lines and covered < len(starts):
        _refuse(f"missing bpf_line_info for func#{covered}")


def _second_slots(insns: tuple[Insn, ...]) -> frozenset[int]:
    found, slot = set(), 0
    for insn in insns:
        if insn.slots == 2:
            found.add(slot + 1)
        slot += insn.slots
    return frozenset(found)
