"""What it costs to attach one program to many functions, and to detach it again."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from emu.kernel.rcu import RcuFlavour
from trampoline.btf import Btf
from trampoline.errors import errno_name
from trampoline.lab import Tracing

IPI_NS = 5_000
"""Virtual time of one round of serialising interrupts: an assumption, as grace periods' durations are."""
PROGRAM = "xor eax, eax\nret"


@dataclass(frozen=True, slots=True)
class Cost:
    """One operation. ``ipis``: rounds of interrupts to all CPUs; ``images`` and ``memory_bytes``: what it added."""

    wall_seconds: float
    virtual_seconds: float
    text_writes: int
    ipis: int
    grace_periods: int
    images: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class MassAttach:
    """``functions`` were attached; ``skipped``: how many were not, by error code."""

    design: str
    flavour: str
    functions: int
    skipped: dict[str, int]
    attach: Cost
    detach: Cost

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def mass_attach(
    pattern: str,
    *,
    flavour: str = "6.12",
    design: str = "batched",
    kind: str = "fentry",
    btf: Path | None = None,
    progress: Callable[[str, int, int], object] = lambda what, done, of: None,
) -> MassAttach:
    """Attach a program to every function that ``pattern`` matches, of the synthetic kernel or of a BTF, and detach it.

    ``progress`` is called with "attach" or "detach", the functions done and their number. Raises BtfError for a file
    that is no BTF, KernelError (-ENOENT) where nothing matches, TrampolineError for what does not exist.
    """
    with Tracing(flavour, design=design, btf=None if btf is None else Btf.read(btf)) as lab:
        prog = lab.prog(f"{kind}_multi", PROGRAM, name="mass")
        wanted = len(lab.population.select([pattern]))

        def told(what: str) -> Callable[[], None]:
            done = 0

            def one_more() -> None:
                nonlocal done
                done += 1
                progress(what, done, wanted)

            return one_more

        link, attach = _measured(
            lab, lambda: lab.attach_multi(prog, [pattern], skip_invalid=True, progress=told("attach"))
        )
        skipped = Counter(errno_name(left_out.errno) for left_out in link.skipped)
        _, detach = _measured(lab, lambda: link.detach(told("detach")))
        return MassAttach(design, flavour, len(link.functions), dict(skipped), attach, detach)


def _measured(lab: Tracing, operation: Callable[[], Any]) -> tuple[Any, Cost]:
    kernel = lab.kernel

    def state() -> tuple[int, ...]:
        periods = sum(kernel.rcu.completed(flavour) for flavour in RcuFlavour)
        memory = kernel.slab.used + kernel.execmem.used + kernel.percpu.used * len(kernel.percpu_areas)
        writes, ipis = kernel.text_poke.writes, kernel.text_poke.ipis
        return writes, ipis, periods, len(kernel.execmem.images), memory, kernel.rcu.now_ns

    before, start = state(), time.perf_counter()
    result = operation()
    wall = time.perf_counter() - start
    writes, ipis, periods, images, memory, waited = (b - a for a, b in zip(before, state(), strict=True))
    return result, Cost(wall, (waited + ipis * IPI_NS) / 1e9, writes, ipis, periods, images, memory)
