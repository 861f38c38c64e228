"""Compile the recorded input of kernel JITs, and compare with their output."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from pathlib import Path

from trampoline.bpf.errors import TrampolineError
from trampoline.bpf.isa.codec import SLOT_SIZE, decode
from trampoline.bpf.jit.bpf_int_jit_compile import compile_func
from trampoline.bpf.jit.jit_image import JitImage
from trampoline.bpf.jit.jit_input import JitArena, JitFunc, Poke
from trampoline.tools.golden.jit_boot import RecordedBoot, recorded_boot
from trampoline.tools.golden.jit_case import JitCase, RecordedFunc, read_jit_cases
from trampoline.tools.golden.trampoline_images import Difference, first_difference


@dataclass(slots=True)
class JitCounts:
    """Number of functions that were compiled, and of those that are identical."""

    total: int = 0
    identical: int = 0


@dataclass(slots=True)
class JitTotals:
    """Counts of all functions and by category; ``skipped``: programs for which no kernel BTF is available."""

    total: int = 0
    identical: int = 0
    skipped: int = 0
    by_category: dict[str, JitCounts] = field(default_factory=dict)

    def count(self, category: str, *, agrees: bool) -> None:
        """Count one function."""
        counts = self.by_category.setdefault(category, JitCounts())
        for one in (self, counts):
            one.total += 1
            one.identical += agrees


def compare_jit_file(path: Path) -> tuple[JitTotals, list[Difference]]:
    """Compile every function of a file and compare. Raises GoldenError for a damaged or unknown file."""
    totals, differences = JitTotals(), list[Difference]()
    runs: dict[str, list[JitCase]] = {}
    for case in read_jit_cases(path):
        runs.setdefault(case.run, []).append(case)
    for run in runs.values():
        boot = recorded_boot(run)
        for case in run:
            for func in case.funcs:
                found = list(compare_func(case, func, boot))
                totals.count(case.category, agrees=not found)
                differences += found
    return totals, differences


def compare_func(case: JitCase, func: RecordedFunc, boot: RecordedBoot) -> Iterator[Difference]:
    """Differences between the generated image of a function and the recorded one: bytes, extable, tail calls."""
    what = f"function {func.index} at {func.address:#x}"
    try:
        made = compile_func(jit_func(case, func, boot), func.address, case.rules, boot.jit)
    except TrampolineError as error:
        yield Difference(case.id, what, -1, "as recorded", f"{type(error).__name__}: {error}")
        return
    yield from _compare_image(case, func, made, what)


def _compare_image(case: JitCase, func: RecordedFunc, made: JitImage, what: str) -> Iterator[Difference]:
    if made.code != func.jited:
        offset = first_difference(made.code, func.jited)
        yield Difference(case.id, f"image of {what}", offset, func.jited.hex(), made.code.hex())
        return
    if made.extable != func.extable:
        yield Difference(case.id, f"extable of {what}", -1, list(map(str, func.extable)), list(map(str, made.extable)))
    for place in made.pokes:
        poke = func.pokes[place.poke]
        if (place.bypass, place.target) != (poke.bypass, poke.target):
            recorded = f"{poke.bypass:#x}, {poke.target:#x}"
            yield Difference(case.id, f"tail call of {what}", -1, recorded, f"{place.bypass:#x}, {place.target:#x}")


def jit_func(case: JitCase, func: RecordedFunc, boot: RecordedBoot) -> JitFunc:
    """A recorded function as the JIT's input. Raises BytecodeError for invalid instructions."""
    return JitFunc(
        decode(func.insnsi, rewritten=True),
        call_base=boot.call_base,
        index=func.index,
        stack_depth=func.stack_depth,
        tail_call_reachable=func.tail_call_reachable,
        exception_cb=func.exception_cb,
        exception_boundary=func.exception_boundary,
        private_stack=func.private_stack,
        arena=_arena(func),
        pokes=tuple(Poke(boot.slots.get((poke.map, poke.key))) for poke in func.pokes),
        indirect_targets=_indirect_targets(case, func),
        name=case.name,
    )


def _arena(func: RecordedFunc) -> JitArena | None:
    """The arena of a function. Its kernel address is the function's first constant; its user address is not
    recorded.
    """
    if not func.uses_arena:
        return None
    return JitArena(next((reloc.target for reloc in func.relocs if reloc.kind == "const"), 0))


def _indirect_targets(case: JitCase, func: RecordedFunc) -> frozenset[int]:
    """Slots that indirect jumps reach. They are recorded as slots of the loaded program, to which both are aligned."""
    if not case.insn_array or func.index:
        return frozenset()
    loaded, rewritten = (
        [code[at : at + 2] for at in range(0, len(code), SLOT_SIZE)] for code in (case.insns, func.insnsi)
    )
    targets = set()
    for block in SequenceMatcher(None, loaded, rewritten, autojunk=False).get_matching_blocks():
        targets |= {slot - block.a + block.b for slot in case.insn_array if block.a <= slot < block.a + block.size}
    return frozenset(targets)
