"""Match between a program extension and the function that it replaces (``btf_check_type_match``, kernel/bpf/btf.c)."""

from errno import EFAULT, EINVAL
from typing import NoReturn

from trampoline.bpf.btf.btf import Btf, BtfKind, Type
from trampoline.bpf.program import BpfProgram
from trampoline.bpf.verifier.errors import VerifierError

GLOBAL = 1
"""``BTF_FUNC_GLOBAL``: linkage of a FUNC."""
_NUMBERS = frozenset({BtfKind.INT, BtfKind.ENUM, BtfKind.ENUM64})


def check_type_match(program: BpfProgram, btf: Btf, replaced: Type) -> None:
    """Check that the first function of ``program`` has the prototype of the FUNC ``replaced`` of ``btf``.

    Raises VerifierError with the log's line.
    """
    if program.btf is None or not program.funcs:
        _refuse("Program extension requires BTF")
    type_id = program.funcs[0].type_id
    if not 0 < type_id < len(program.btf) or program.btf.type(type_id).kind is not BtfKind.FUNC:
        raise VerifierError(EFAULT, "")
    _check_functions(program.btf, program.btf.type(type_id), btf, replaced)


def _refuse(message: str) -> NoReturn:
    raise VerifierError(EINVAL, message, log=message + "\n")


def _check_functions(btf1: Btf, func1: Type, btf2: Btf, func2: Type) -> None:
    for func in (func1, func2):
        if func.count != GLOBAL:
            _refuse(f"{func.name}() is not a global function")
    params1, ret1 = btf1.prototype(func1.type_id)
    params2, ret2 = btf2.prototype(func2.type_id)
    if len(params1) != len(params2):
        _refuse(f"{func1.name}() has {len(params1)} args while {func2.name}() has {len(params2)} args")
    type1, type2 = btf1.unmodified(ret1), btf2.unmodified(ret2)
    if _info(type1) != _info(type2):
        _refuse(f"Return type {_kind(type1)} of {func1.name}() doesn't match type {_kind(type2)} of {func2.name}()")
    for position, (param1, param2) in enumerate(zip(params1, params2, strict=True)):
        type1, type2 = btf1.unmodified(param1), btf2.unmodified(param2)
        what = f"arg{position} in {func1.name}()"
        if _info(type1) != _info(type2):
            _refuse(f"{what} is {_kind(type1)} while {func2.name}() has {_kind(type2)}")
        if type1.size != type2.size:
            _refuse(f"{what} has size {type1.size} while {func2.name}() has {type2.size}")
        if type1.kind in _NUMBERS:
            continue
        # Global functions accept only numbers and pointers to the context.
        if type1.kind is not BtfKind.PTR:
            _refuse(f"{what} has unrecognized type")
        to1, to2 = btf1.unmodified(type1.type_id), btf2.unmodified(type2.type_id)
        if to1.kind is not BtfKind.STRUCT:
            _refuse(f"{what} is not a pointer to context")
        if to2.kind is not BtfKind.STRUCT:
            _refuse(f"arg{position} in {func2.name}() is not a pointer to context")
        if to1.name != to2.name:
            _refuse(f"arg{position} {func1.name}(struct {to1.name} *) doesn't match {func2.name}(struct {to2.name} *)")


def _info(found: Type) -> tuple[BtfKind, int, bool]:
    """The contents of ``btf_type.info``."""
    return found.kind, 0 if found.kind is BtfKind.ARRAY else found.count, found.flag


def _kind(found: Type) -> str:
    return found.kind.name if found.kind else "UNKN"
