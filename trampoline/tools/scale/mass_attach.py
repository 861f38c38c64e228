"""Cost of attaching one program to many functions, and of detaching it."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from emu.kernel.rcu import RcuFlavour
from trampoline.bpf.btf.btf import Btf
from trampoline.bpf.errors import TrampolineError, errno_name
from trampoline.kfunc_md.arena import bytes_beside_slab
from trampoline.lab import Lab
from trampoline.lab.functions import KernelFunction
from trampoline.lab.links.tracing_multi import TracingMultiLink
from trampoline.tools.scale.spot_check import Check

IPI_NS = 5_000
"""Virtual time of one round of IPIs in ns: an assumption, as the durations of grace periods are."""
CHECK_EVERY = 1000
"""Interval of the functions that are called and checked."""
PROGRESS_STEPS = 200
"""Largest number of progress reports for an operation."""

Progress = Callable[[str, int, int], object]


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of one operation. ``ipis``: rounds of IPIs to all CPUs; ``images`` and ``memory_bytes``: what it added."""

    wall_seconds: float
    virtual_seconds: float
    text_writes: int
    ipis: int
    grace_periods: int
    images: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class MassAttach:
    """Result. ``functions`` were attached; ``skipped``: number of the others, by error code. ``checked`` of them were
    called before, while attached and after; ``wrong`` names those with another value, or with an unexpected or missing
    run of the program.
    """

    design: str
    flavour: str
    functions: int
    skipped: dict[str, int]
    checked: int
    wrong: tuple[str, ...]
    attach: Cost
    detach: Cost

    def to_json(self) -> dict[str, Any]:
        """The result as plain values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Conditions:
    """Conditions of the attach.

    ``cookies``: each function has its own cookie. ``durations``: of grace periods in virtual nanoseconds, by default
    ``emu.kernel.rcu.GRACE_PERIOD_NS``; ``ipi_ns``: of a round of IPIs. ``check``: interval of the functions that are
    called and checked, 0 for none.
    """

    flavour: str = "6.12"
    design: str = "specialised"
    metadata: str | None = None
    kind: str = "fentry"
    cookies: bool = False
    durations: Mapping[RcuFlavour, int] | None = None
    ipi_ns: int = IPI_NS
    check: int = CHECK_EVERY

    def __post_init__(self) -> None:
        if self.check < 0:
            raise TrampolineError(f"check={self.check} is negative")
        if self.ipi_ns < 0 or any(duration < 0 for duration in (self.durations or {}).values()):
            raise TrampolineError("durations cannot be negative")

    def lab(self, btf: Btf | None) -> Lab:
        """A laboratory under these conditions."""
        lab = Lab(self.flavour, design=self.design, metadata=self.metadata, btf=btf)
        lab.kernel.rcu.durations.update(self.durations or {})
        return lab


def mass_attach(
    pattern: str,
    *,
    btf: Path | Btf | None = None,
    progress: Progress = lambda what, done, of: None,
    **conditions: Any,
) -> MassAttach:
    """Attach a program to every function that ``pattern`` matches, of the synthetic kernel or of a BTF, and detach it.

    ``conditions``: fields of ``Conditions``. ``progress`` is called with "attach" or "detach", the number of functions
    done and their total. Raises BtfError for an invalid BTF file, KernelError (-ENOENT) if nothing matches,
    TrampolineError for an unknown name.
    """
    under = Conditions(**conditions)
    with under.lab(Btf.read(btf) if isinstance(btf, Path) else btf) as lab:
        return attach_and_detach(lab, lab.population.select([pattern]), under, progress)


def attach_and_detach(
    lab: Lab, functions: Sequence[KernelFunction], under: Conditions, progress: Progress
) -> MassAttach:
    """Attach one program to functions of a kernel, without those that cannot be traced, and detach it."""
    check = Check(lab)
    prog = lab.prog(f"{under.kind}_multi", check.program, name="mass")
    check.sample(prog, functions, under.check)
    cookies = range(1, len(functions) + 1) if under.cookies else None

    def told(what: str) -> Callable[[], None]:
        done, wanted = 0, len(functions)
        step = max(1, wanted // PROGRESS_STEPS)

        def one_more() -> None:
            nonlocal done
            done += 1
            if done % step == 0 or done == wanted:
                progress(what, done, wanted)

        return one_more

    def attach() -> TracingMultiLink:
        return lab.attach_multi(prog, functions, cookies=cookies, skip_invalid=True, progress=told("attach"))

    link, attached = _measured(lab, attach, under.ipi_ns)
    skipped = Counter(errno_name(one.errno) for one in link.skipped)
    left_out = {one.name for one in link.skipped}
    checked, wrong = check.run(attached=True, without=left_out)
    _, detached = _measured(lab, lambda: link.detach(told("detach")), under.ipi_ns)
    wrong |= check.run(attached=False, without=left_out)[1]
    return MassAttach(
        design=under.design,
        flavour=under.flavour,
        functions=len(link.functions),
        skipped=dict(sorted(skipped.items())),
        checked=checked,
        wrong=tuple(sorted(wrong)),
        attach=attached,
        detach=detached,
    )


def _measured(lab: Lab, operation: Callable[[], Any], ipi_ns: int) -> tuple[Any, Cost]:
    kernel = lab.kernel

    def state() -> tuple[int, ...]:
        periods = sum(kernel.rcu.completed(flavour) for flavour in RcuFlavour)
        memory = kernel.slab.used + kernel.execmem.used + kernel.percpu.used * len(kernel.percpu_areas)
        memory += bytes_beside_slab(kernel)
        writes, ipis = kernel.text_poke.writes, kernel.text_poke.ipis
        return writes, ipis, periods, len(kernel.execmem.images), memory, kernel.rcu.now_ns

    before, start = state(), time.perf_counter()
    result = operation()
    wall = time.perf_counter() - start
    writes, ipis, periods, images, memory, waited = (b - a for a, b in zip(before, state(), strict=True))
    return result, Cost(wall, (waited + ipis * ipi_ns) / 1e9, writes, ipis, periods, images, memory)
