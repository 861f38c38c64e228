"""Bodies and calls of recorded targets: the selftest functions with their real effect, other functions with recorded
results.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from emu.kernel.text.selftest_functions import TEST_FUNCTIONS
from trampoline.bpf.btf.func_model import MAX_BPF_FUNC_ARGS
from trampoline.tools.golden.trampoline_case import Case, RecordedTarget
from trampoline.tools.golden.trampoline_images import attached_programs

_MEANING = {function.name: function.body for function in TEST_FUNCTIONS}

FENTRY_TEST_ARGS = {
    "bpf_fentry_test1": (1,),
    "bpf_fentry_test2": (2, 3),
    "bpf_fentry_test3": (4, 5, 6),
    "bpf_fentry_test4": (7, 8, 9, 10),
    "bpf_fentry_test5": (11, 12, 13, 14, 15),
    "bpf_fentry_test6": (16, 17, 18, 19, 20, 21),
    "bpf_fentry_test7": (0,),
    "bpf_fentry_test8": (None,),
    "bpf_fentry_test9": (None,),
    "bpf_fentry_test10": (0,),
}
"""Arguments of the test run (net/bpf/test_run.c); None: a pointer to a zeroed word."""

MODIFY_RETURN_ARGS = {"bpf_modify_return_test": (1, None), "bpf_modify_return_test2": (1, None, 3, 4, 5, 6, 7)}
"""Arguments for modify_return tests; None: a pointer to an int that is 2 before each call."""


@dataclass(frozen=True, slots=True)
class Invocation:
    """One call of a target. ``pointee``: contents of the memory that a None argument points to."""

    args: tuple[int | None, ...]
    pointee: int


def body_of(target: RecordedTarget, cell: int) -> str:
    """The body after the patch site: it counts its run in the word at ``cell``, then does what the function does.

    A function whose body was not recorded returns the word at ``cell + 8``.
    """
    count = f"movabs r11, {cell:#x} ; runs are counted here\ninc qword ptr [r11]\n"
    return count + _MEANING.get(target.name, "mov rax, [r11 + 8]\nret")


def invocations(case: Case, target: RecordedTarget) -> Iterator[Invocation]:
    """The calls of a target with their arguments, as the test run makes them, or as its programs recorded them."""
    if target.name in FENTRY_TEST_ARGS:
        if any(t["what"] == "test fe" for t in case.triggers):
            yield Invocation(FENTRY_TEST_ARGS[target.name], 0)
        return
    if target.name in MODIFY_RETURN_ARGS:
        if any(t["what"] == "test mr" for t in case.triggers):
            yield Invocation(MODIFY_RETURN_ARGS[target.name], 2)
        return
    calls = 0
    for program in attached_programs(case, target):
        per_call = 2 if program.attach.startswith("fsession") else 1
        calls = max(calls, program.observed.count // per_call)
    args = recorded_args(case, target)[: target.model.nr_regs]
    for _ in range(calls):
        yield Invocation(args, 0)


def recorded_args(case: Case, target: RecordedTarget) -> tuple[int, ...]:
    """The argument slots that programs on a target recorded, 0 if none did; the first one also from
    bpf_get_func_arg().
    """
    seen = [program.observed for program in attached_programs(case, target)]
    args = [next((o.args[i] for o in seen if o.args[i]), 0) for i in range(MAX_BPF_FUNC_ARGS)]
    args[0] = args[0] or next((o.arg0_by_helper for o in seen if o.arg0_by_helper), 0)
    return tuple(args)


def recorded_return(case: Case, target: RecordedTarget) -> int:
    """Return value of the original, from a program that saw it; 0 if none did."""
    for program in attached_programs(case, target):
        if program.attach.startswith(("fexit", "fsession")) and program.observed.ret:
            return program.observed.ret
    return 0
