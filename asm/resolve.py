"""Resolution of a parsed statement with the values of its symbols: the encoder's request, and the listing's text."""

from __future__ import annotations

import re
from collections.abc import Callable

from asm.encoder import PLACEHOLDER, Encoded, Request
from asm.operands import AsmExpression, Immediate, MemoryOperand, Refusal, RegisterOperand, check_range
from asm.registers import HIGH_BYTES, NUMBER_32, NUMBER_64, REX_OPERANDS
from asm.roundtrip import STRING_OPERANDS, Meant, MeantMemory, MeantOperand, signed
from asm.syntax import Statement

Lookup = Callable[[str, int], int]

# Keystone crashes on memory operands of these other than those that the processor uses.
_IMPLICIT = frozenset(
    (*STRING_OPERANDS, "movs", "stos", "lods", "scas", "cmps", "ins", "insq", "outs", "outsq", "xlat", "xlatb")
)
# Memory operands of these have 8 bytes in 64-bit mode by default.
_STACK_SIZED = frozenset({"call", "jmp", "push", "pop"})
# Here the other operand does not determine the size of the memory operand; Keystone would guess.
_OWN_SIZE = frozenset({"movzx", "movsx", "movsxd", "cvtsi2sd", "cvtsi2ss", "crc32"})
_SHIFTS = frozenset({"shl", "sal", "shr", "sar", "rol", "ror", "rcl", "rcr"})
# Instructions whose memory operand has one size only.
_ONE_SIZE = re.compile(
    r"invlpg|prefetch\w*|clflush\w*|clwb|cldemote|fx\w+|xsave\w*|xrstor\w*|ldmxcsr|stmxcsr|[ls][gi]dt|lldt|ltr|lmsw"
    r"|str|sldt|smsw|ver[rw]|cmpxchg\d+b|set\w+"
)
_SIZE = re.compile(r"(?:\w+ )?ptr (?=\w\w:\[|\[)")


def evaluate(expression: AsmExpression, lookup: Lookup) -> int:
    """Value of an expression; `lookup` returns the value of a symbol or raises Refusal at its column."""
    if expression.constant is not None:
        return expression.constant
    total = 0
    for term in expression.terms:
        content = term.content
        total += term.sign * (content if isinstance(content, int) else lookup(content, term.column))
    check_range(total, expression.column)
    return total


def resolve(statement: Statement, lookup: Lookup) -> Request:
    """Request with numbers in place of symbols; a rip-relative displacement is written later. Raises Refusal."""
    name = statement.mnemonic.rpartition(" ")[2]
    operands = tuple(_meant(operand, name, lookup) for operand in statement.operands)
    _check_high_bytes(statement)
    memories = [operand for operand in statement.operands if isinstance(operand, MemoryOperand)]
    if statement.long_form and not memories:
        raise Refusal(statement.column, f"{{disp32}}: {name} has no displacement here")
    if operands and name in _IMPLICIT and not any(op.startswith("xmm") for op in operands if isinstance(op, str)):
        if Meant("", operands).text().strip() != STRING_OPERANDS.get(name):
            raise Refusal(statement.column, f"{name} takes no operands, or exactly those that it has")
        operands = ()
    elif len(memories) == 1 and not memories[0].size and name not in _STACK_SIZED:
        _check_size_known(statement, name, memories[0])
    return Request(Meant(statement.mnemonic, operands), statement.long_form)


def _check_high_bytes(statement: Statement) -> None:
    """Raises Refusal for ah, bh, ch and dh in an instruction with a REX prefix, on which Keystone aborts the process.
    """
    high = [op for op in statement.operands if isinstance(op, RegisterOperand) and op.name in HIGH_BYTES]
    if not high:
        return
    for operand in statement.operands:
        if isinstance(operand, RegisterOperand):
            rex = operand.name in REX_OPERANDS
        else:
            rex = isinstance(operand, MemoryOperand) and (operand.size == 8 or _extended(operand))
        if rex:
            raise Refusal(high[0].column, f"{high[0].name} can't be reached in an instruction with a REX prefix")


def _extended(memory: MemoryOperand) -> bool:
    return any(NUMBER_64.get(name, NUMBER_32.get(name, 0)) >= 8 for name in (memory.base, memory.index))


def _check_size_known(statement: Statement, name: str, memory: MemoryOperand) -> None:
    beside = any(isinstance(operand, RegisterOperand) for operand in statement.operands)
    if _ONE_SIZE.fullmatch(name) or (beside and name not in _OWN_SIZE and name not in _SHIFTS):
        return
    raise Refusal(memory.column, "the size of this memory operand is open; write one such as 'qword ptr'")


def _meant(operand: RegisterOperand | Immediate | MemoryOperand, name: str, lookup: Lookup) -> MeantOperand:
    if type(operand) is RegisterOperand:
        return operand.name
    if type(operand) is Immediate:
        return evaluate(operand.expression, lookup)
    assert type(operand) is MemoryOperand
    size = operand.size or (8 if name in _STACK_SIZED else 0)
    if name == "lea":
        # It reads nothing.
        size = 0
    if operand.base == "rip":
        return MeantMemory(size, operand.segment, "rip", "", 1, PLACEHOLDER)
    value = signed(evaluate(operand.expression, lookup), 64)
    if not -(1 << 31) <= value < (1 << 31):
        raise Refusal(operand.expression.column, f"{value:#x} does not fit a displacement of 32 bits")
    return MeantMemory(size, operand.segment, operand.base, operand.index, operand.scale, value)


def symbolic_text(statement: Statement, encoded: Encoded) -> str:
    """Canonical text of a statement with symbol names in place of their values."""
    size = _SIZE.search(encoded.operands)
    texts = []
    for operand in statement.operands:
        if isinstance(operand, RegisterOperand):
            texts.append(operand.name)
        elif isinstance(operand, Immediate):
            texts.append(operand.expression.text())
        else:
            texts.append((size[0] if size else "") + _memory_text(operand))
    return f"{encoded.mnemonic} {', '.join(texts)}"


def _memory_text(memory: MemoryOperand) -> str:
    parts = [memory.base] if memory.base else []
    if memory.index:
        parts.append(memory.index if memory.scale == 1 else f"{memory.index}*{memory.scale}")
    inside = " + ".join(parts)
    shift = memory.expression.text() if memory.expression.terms else ""
    if shift and inside:
        inside += f" - {shift[1:]}" if shift.startswith("-") else f" + {shift}"
    segment = f"{memory.segment}:" if memory.segment else ""
    return f"{segment}[{inside or shift}]"


__all__ = ["Lookup", "evaluate", "resolve", "symbolic_text"]
