"""Cost of an attached program: instructions from the patch site until its return.

T includes the site's call or jmp, the trampoline and all it calls; not endbr64, the traced function's body or the
programs' bodies (with the helpers that they call). It is exact, so it is the same on every machine.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from errno import E2BIG
from typing import Any

from emu.counting.counts import OTHER, InstructionCounts
from trampoline.bpf.btf.btf import Btf
from trampoline.bpf.btf.func_model import MAX_BPF_FUNC_ARGS
from trampoline.bpf.errors import KernelError, TrampolineError, errno_name
from trampoline.bpf.prog import NOTHING, BpfProg, Uses
from trampoline.designs import design_info
from trampoline.lab import Lab
from trampoline.lab.functions import KernelFunction
from trampoline.tools.bench.reference_figures import anchor

DESIGN = "per-function"
ROWS = {
    "fentry": "fentry",
    "fexit": "fexit",
    "fmodret": "fmod_ret",
    "fentry-multi": "fentry_multi",
    "fentry-multi-all": "fentry_multi",
    "fexit-multi": "fexit_multi",
    "fmodret-multi": "fmod_ret_multi",
}
"""Rows by name, as in the kernel's bench tool, with their attach types. A multi row's link is on two functions, or on
all functions of the kernel.
"""
DEFAULT_FLAVOUR = {"voluntary": "6.12", "lazy": "7.2", "none": "7.2"}
PROGRAMS = ("plain", "full")
ALL = "all"

_OTHER = "bpf_fentry_test1"
"""Second function of a link."""
_RESULT = 0xFFFFFFEA
"""Return value of the fmod_ret programs: -EINVAL, as in the kernel's bench."""
PLAIN = "xor eax, eax\nret"
FULL = """
push rbx
mov rbx, rdi
mov rax, [rbx - 8]        ; bpf_get_func_arg_cnt()
mov rax, [rbx - 0x10]     ; bpf_get_func_ip()
call bpf_get_attach_cookie_tracing
xor eax, eax
pop rbx
ret
"""
_MODIFY_RETURN = """
xor eax, eax
mov rcx, {left:#x}
mov edx, {result:#x}
dec dword ptr [rcx]       ; the last program to run skips the original: designs differ in their order
cmovz eax, edx
"""
_HELPERS = ("bpf_get_attach_cookie_tracing", "bpf_get_attach_cookie")


@dataclass(frozen=True, slots=True)
class BenchRow:
    """One line of the bench.

    ``kind``: the attach type. ``functions``: number of functions that the program is on. ``metadata``: the back end of
    function lookups, None without lookups. ``further``: additional instructions for one more program, None if it is
    refused. ``anchor`` and ``further_anchor`` are figures of real kernel code, ``ratio``: ``instructions`` divided by
    ``anchor``; None if they were not measured. A refused row has an ``error`` (``"ENOTSUPP"``) and no instructions.
    """

    name: str
    kind: str
    design: str
    flavour: str
    config: str
    nr_args: int
    programs: int
    program: str
    metadata: str | None
    functions: int
    instructions: int | None
    unbalanced_returns: int | None
    phases: dict[str, int]
    further: int | None
    anchor: int | None
    further_anchor: int | None
    ratio: float | None
    error: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The row as plain values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Run:
    """Counts of one call."""

    instructions: int
    unbalanced_returns: int
    phases: dict[str, int]


def measure(
    name: str,
    *,
    flavour: str,
    config: str,
    design: str = DESIGN,
    metadata: str | None = None,
    nr_args: int = 1,
    programs: int = 1,
    program: str = "plain",
    btf: Btf | None = None,
) -> BenchRow:
    """Measure one row.

    The functions of a multi link have different cookies, so that a lookup is needed, except if the design has a choice
    of metadata and none is given. ``btf``: its functions are the kernel's. Raises TrampolineError for an unknown name,
    and KernelError if the flavour or the design refuses the row.
    """
    if name not in ROWS or program not in PROGRAMS:
        raise TrampolineError(f"no row {name!r} with {program!r} programs")
    if not 0 <= nr_args <= MAX_BPF_FUNC_ARGS:
        raise TrampolineError(f"{nr_args} arguments: 0 to {MAX_BPF_FUNC_ARGS} can be traced")
    if programs < 1:
        raise TrampolineError("at least one program is needed")
    is_multi = ROWS[name].endswith("_multi")
    info = design_info(design)
    with Lab(flavour, config, design=design, metadata=metadata, btf=btf) as lab:
        bench = Bench(lab, name, nr_args, program, same_cookie=bool(info.metadata) and metadata is None)
        for _ in range(programs):
            bench.attach()
        run = bench.run()
        try:
            bench.attach()
            further = bench.run().instructions - run.instructions
        except KernelError:
            further = None  # the limit of programs is reached
    found_by = info.found_by(metadata) if is_multi else None
    known = anchor(name, design=design, config=config, nr_args=nr_args, program=program, metadata=found_by)
    expected = known.instructions(nr_args, programs) if known else None
    return BenchRow(
        name=name,
        kind=ROWS[name],
        design=design,
        flavour=flavour,
        config=config,
        nr_args=nr_args,
        programs=programs,
        program=program,
        metadata=found_by,
        functions=bench.functions,
        instructions=run.instructions,
        unbalanced_returns=run.unbalanced_returns,
        phases=run.phases,
        further=further,
        anchor=expected,
        further_anchor=known.further if known else None,
        ratio=round(run.instructions / expected, 4) if expected else None,
    )


class Bench:
    """Programs of one row on one function, attached one after the other, and calls of the function."""

    def __init__(self, lab: Lab, name: str, nr_args: int, program: str, *, same_cookie: bool) -> None:
        self._lab, self._name, self._program, self._same_cookie = lab, name, program, same_cookie
        self.traced, self._nr_args = f"tramplab_args{nr_args}", nr_args
        self._progs: list[BpfProg] = []
        self._left = lab.kernel.module_data(8, 8)
        """Guest address of the number of fmod_ret programs that are still to run."""
        self.functions = 1

    def attach(self) -> None:
        """Load and attach one more program. Raises KernelError."""
        lab, name = self._lab, self._name
        text = FULL if self._program == "full" else PLAIN
        if name.startswith("fmodret"):
            text = text.replace("xor eax, eax", _MODIFY_RETURN.format(left=self._left, result=_RESULT))
        prog = lab.prog(ROWS[name], text, uses=Uses(func_ip=True) if self._program == "full" else NOTHING)
        cookie = len(self._progs) + 1
        if "-" not in name:
            lab.attach(prog, self.traced, cookie=cookie)
        else:
            functions = self._functions()
            cookies = [cookie if self._same_cookie else cookie + (i << 32) for i in range(len(functions))]
            link = lab.attach_multi(prog, functions, cookies=cookies, skip_invalid=name.endswith(ALL))
            for skipped in link.skipped:
                if skipped.name == self.traced:
                    raise skipped.error
            self.functions = len(link.functions)
        self._progs.append(prog)

    def _functions(self) -> list[KernelFunction]:
        population = self._lab.population
        traced = population.find(self.traced)
        if not self._name.endswith(ALL):
            return [population.find(_OTHER), traced]
        return [*(function for function in population.select(["*"]) if function.address != traced.address), traced]

    def run(self) -> _Run:
        """Call the function and add up its counts. Raises TrampolineError if a program did not run once."""
        counts = self.call()
        phases = phases_of(self._lab, counts.by_address, self.traced)
        return _Run(sum(phases.values()), counts.unbalanced_returns, phases)

    def call(self) -> InstructionCounts:
        """Call the function. Raises TrampolineError if a program did not run once."""
        lab, stack = self._lab, max(self._nr_args - 6, 0)
        lab.kernel.machine.write_u64(self._left, len(self._progs))
        call = lab.call(self.traced, *range(self._nr_args - stack), stack_args=range(stack))
        counts = call.counts
        if counts is None:
            raise TrampolineError("this machine does not count")
        if any(counts.by_address.get(prog.bpf_func) != 1 for prog in self._progs):
            raise TrampolineError(f"{self._name}: not every program ran once")
        return counts


def phases_of(lab: Lab, by_address: Mapping[int, int], traced: str) -> dict[str, int]:
    """T by phase."""
    phases: dict[str, int] = {}
    for _, executed, phase in executed_of(lab, by_address, traced):
        phases[phase] = phases.get(phase, 0) + executed
    return phases


def executed_of(lab: Lab, by_address: Mapping[int, int], traced: str) -> Iterator[tuple[int, int, str]]:
    """Instructions that T includes: all executed ones except the traced function after its site and the programs.
    Addresses in order, execution counts, phases.
    """
    kernel = lab.kernel
    site = kernel.function(traced).site
    for address, executed in sorted(by_address.items()):
        name = kernel.kallsyms.function_name(address) or ""
        if address == site:
            phase = "entry"
        elif name == traced or name.startswith("bpf_prog_") or name in _HELPERS:
            continue
        else:
            phase = kernel.machine.images.phase(address) or OTHER
        yield address, executed, phase


def bench(
    flavours: Iterable[str],
    configs: Iterable[str],
    *,
    designs: Sequence[str] = (DESIGN,),
    metadata: str = ALL,
    nr_args: int = 1,
    programs: int = 1,
    program: str = "plain",
    btf: Btf | None = None,
) -> list[BenchRow]:
    """All rows for some flavours, configurations and designs; ``metadata``: for designs with a choice, or all.

    A refused row has its error. Raises KernelError if every row is refused, TrampolineError for an unknown name.
    """
    infos = {design: design_info(design) for design in designs}
    chosen = {design: [one for one in infos[design].metadata or () if metadata in (ALL, one)] for design in designs}
    if metadata != ALL and not any(chosen[design] or infos[design].looks_up == metadata for design in designs):
        raise TrampolineError(f"{', '.join(designs)}: no metadata {metadata!r}")
    rows: list[BenchRow] = []
    refusals: list[KernelError] = []
    full: dict[tuple[str, str, bool], KernelError] = {}
    """Rows whose function did not take that many programs: the limit applies to programs of every kind alike."""

    def row(name: str, flavour: str, config: str, design: str, choice: str | None) -> BenchRow:
        group = flavour, design, ROWS[name].endswith("_multi")
        try:
            if group in full:
                raise full[group]
            return measure(
                name,
                flavour=flavour,
                config=config,
                design=design,
                metadata=choice,
                nr_args=nr_args,
                programs=programs,
                program=program,
                btf=btf if name.endswith(ALL) else None,
            )
        except KernelError as error:
            refusals.append(error)
            if error.errno == E2BIG:
                full[group] = error
            return BenchRow(
                name, ROWS[name], design, flavour, config, nr_args, programs, program, choice, 0,
                None, None, {}, None, None, None, None, errno_name(error.errno),
            )  # fmt: skip

    for config in configs:
        for flavour in flavours:
            for design in designs:
                for name, kind in ROWS.items():
                    without = row(name, flavour, config, design, None)
                    if kind.endswith("_multi"):
                        # The same count with one cookie for all functions shows that there is no lookup.
                        looked_up = (row(name, flavour, config, design, choice) for choice in chosen[design])
                        rows += [one for one in looked_up if _costs(one) != _costs(without)]
                    rows.append(without)
    if all(row.error for row in rows):
        raise refusals[0]
    return rows


def _costs(row: BenchRow) -> tuple[int | None, int | None, str | None]:
    return row.instructions, row.further, row.error
