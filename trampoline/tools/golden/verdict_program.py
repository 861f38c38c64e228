"""The program of a recorded verdict: recorded data, and data inferred from the record.

Recordings contain neither a program's BTF and func_info nor its name. If these matter they are inferred from the case's
name (``func-info-missing-sub``, ``no-btf``, ``name-bad``) and from the log's description of the *input*: functions that
it calls global, and the initial types of their registers. The kernel's answer is never used.
"""

import re
from dataclasses import dataclass, field, replace

from trampoline.bpf.btf.btf import BtfKind
from trampoline.bpf.btf.writer import BtfWriter
from trampoline.bpf.isa.insn import CALL, EXIT, CallKind, Insn
from trampoline.bpf.program import BpfProgram, FuncInfo
from trampoline.bpf.uapi import ProgType
from trampoline.bpf.verifier.prepass.func_info import function_starts
from trampoline.tools.golden.verdict_case import VerdictCase


@dataclass(slots=True)
class _Function:
    """A function of a program: ``params`` are ``int``, ``ctx``, or ``mem`` followed by a size in bytes."""

    name: str
    is_global: bool = False
    params: list[str] = field(default_factory=list)


def target_program() -> BpfProgram:
    """``tgt1``, the target of extensions: a socket filter whose functions are main (type id 5), the global gsub (8) and
    the static ssub (10); all but main take one number.
    """
    writer = BtfWriter()
    number = writer.number()
    context = writer.add(BtfKind.STRUCT, "__sk_buff", 192)
    main = writer.function("main", writer.prototype(number, writer.pointer(context)), is_global=True)
    param = writer.number("unsigned int")
    gsub = writer.function("gsub", writer.prototype(number, param), is_global=True)
    ssub = writer.function("ssub", writer.prototype(number, param), is_global=False)
    call, mov = CallKind.SUBPROG, 0xB7
    insns = (
        Insn(mov, 1, imm=1),
        Insn(CALL, src=call, imm=4),
        Insn(mov, 1, imm=1),
        Insn(CALL, src=call, imm=4),
        Insn(mov, 0),
        Insn(EXIT),
        Insn(mov, 0),
        Insn(EXIT),
        Insn(mov, 0),
        Insn(EXIT),
    )
    funcs = (FuncInfo(0, main), FuncInfo(6, gsub), FuncInfo(8, ssub))
    return BpfProgram("tgt1", insns, ProgType.SOCKET_FILTER, btf=writer.btf(), funcs=funcs)


def program_of(case: VerdictCase, targets: dict[str, BpfProgram]) -> BpfProgram:
    """The program that a case loads; ``targets``: programs kept so far, by name."""
    program = BpfProgram(
        name="bad name" if "name-bad" in case.name else "test",
        insns=case.insns,
        prog_type=case.prog_type,
        attach=case.attach_type,
        license=case.license,
        flags=case.flags,
        attach_btf_id=case.attach_btf_id,
        attach_prog=targets.get(case.target_program),
        maps=case.maps,
    )
    starts = function_starts(case.insns)
    is_extension = case.prog_type == ProgType.EXT
    says_types = "func-info" in case.name or "line-info" in case.name
    if "no-btf" in case.name or not (is_extension or case.kept_as or len(starts) > 1 or says_types):
        return program
    functions = [_function(case, number) for number in range(len(starts))]
    if is_extension:
        functions[0] = _extension(case, functions[0])
    writer = BtfWriter()
    ids = _write(writer, functions)
    funcs = _changed(case.name, [FuncInfo(start, type_id) for start, type_id in zip(starts, ids, strict=True)])
    return replace(program, btf=writer.btf(), funcs=tuple(funcs))


def _function(case: VerdictCase, number: int) -> _Function:
    if number == 0:
        # The recorder's main takes a void pointer.
        return _Function("main", True, ["mem0"])
    named = re.search(rf"Func#{number} \('(\w+)'\)|Validating (\w+)\(\) func#{number}\b", case.log)
    is_global = bool(named) or f"Func#{number} is global" in case.log or "global" in case.name
    function = _Function((named[1] or named[2]) if named else f"f{number}", is_global)
    if not is_global:
        return function
    begins = re.search(rf"Validating \w+\(\) func#{number}\.\.\.\n\d+: (R1=.*)", case.log)
    refused = re.search(r"R(\d) type=\w+ expected=fp", case.log)
    if begins:
        function.params = _params(begins[1])
    elif refused:
        function.params = ["int"] * (int(refused[1]) - 1) + ["mem8"]
    elif "mem" in case.name or "ptr" in case.name:
        function.params = ["mem8"]
    else:
        function.params = ["int"]
    return function


def _params(registers: str) -> list[str]:
    """Types of R1 to R5 at the start of a function, from the log's line."""
    params = []
    for number in range(1, 6):
        found = re.search(rf"\bR{number}(?:_w)?=(\w+)\(([^)]*)\)", registers)
        if not found:
            break
        size = re.search(r"sz=(\d+)", found[2])
        if found[1].startswith("mem"):
            # 6.1 does not print sizes.
            params.append(f"mem{size[1] if size else 8}")
        else:
            params.append("ctx" if found[1] == "ctx" else "int")
    return params


def _extension(case: VerdictCase, main: _Function) -> _Function:
    """The extension's own function: with the prototype that the log shows, otherwise one of a single number."""
    begins = re.search(r"Validating main\(\) func#0\.\.\.\n\d+: (R1=.*)", case.log)
    if begins:
        main.params = _params(begins[1])
    elif found := re.search(r"arg\d+ in main\(\) is (\w+)", case.log):
        main.params = ["ctx" if found[1] == "PTR" else "long"]
    elif found := re.search(r"main\(\) has (\d+) args", case.log):
        main.params = ["int"] * int(found[1])
    elif "main() is not a global function" in case.log:
        main.is_global, main.params = False, ["int"]
    elif found := re.search(r"arg\d+ in main\(\) has size (\d+)", case.log):
        main.params = ["long" if found[1] == "8" else "int"]
    elif "Return type" in case.log:
        main.name, main.params = "main", ["int", "returns"]
    else:
        main.params = ["int"]
    return main


def _write(writer: BtfWriter, functions: list[_Function]) -> list[int]:
    """Write functions; returns their type ids."""
    number = writer.number()
    ids = []
    for function in functions:
        returns = "returns" in function.params
        params = [_param(writer, number, param) for param in function.params if param != "returns"]
        ret = writer.pointer(0) if returns else number
        ids.append(writer.function(function.name, writer.prototype(ret, *params), is_global=function.is_global))
    return ids


def _param(writer: BtfWriter, number: int, param: str) -> int:
    if param == "int":
        return number
    if param == "long":
        return writer.number("long", 8)
    if param == "ctx":
        return writer.pointer(writer.add(BtfKind.STRUCT, "__sk_buff", 192))
    size = int(param.removeprefix("mem"))
    return writer.pointer(0 if not size else writer.number(f"s{size}", size) if size <= 8 else _struct(writer, size))


def _struct(writer: BtfWriter, size: int) -> int:
    return writer.add(BtfKind.STRUCT, f"s{size}", size)


def _changed(name: str, funcs: list[FuncInfo]) -> list[FuncInfo]:
    """func_info with the fault that the case's name states."""
    if "func-info" not in name:
        return funcs
    if "missing" in name:
        return funcs[:-1]
    if "extra" in name:
        return [*funcs, replace(funcs[-1], slot=funcs[-1].slot + 1)]
    if "bad-type" in name:
        return [replace(funcs[0], type_id=1), *funcs[1:]]
    if "order" in name:
        return [funcs[0], *funcs[:0:-1]]
    if "off" in name or "nonzero" in name:
        return [*funcs[:-1], replace(funcs[-1], slot=funcs[-1].slot + 1)]
    return funcs
