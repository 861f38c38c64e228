"""How fast patch sites of a kernel get direct callers, other ones and none, all in one update; and one by one.

python benchmarks/patching.py RELEASE BTF [VCPUS]

Seconds, the best of several rounds. ``each``: calling ``text_poke_bp`` for each of the sites once, in the same run.
``sites/s`` is that of adding them in one update.
"""

import sys
import time
from collections.abc import Callable

from asm.encodings import NOP5, call_rel32
from emu.kernel.ftrace.ops import FtraceOps
from emu.kernel.kernel import Kernel
from emu.kernel.text.functions import FunctionText
from trampoline.bpf.btf.btf import Btf
from trampoline.lab import Lab

ROUNDS = 5
COUNTS = (1_000, 10_000)


def seconds(operation: Callable[[], object]) -> float:
    """How long one call takes."""
    start = time.perf_counter()
    operation()
    return time.perf_counter() - start


def in_one(kernel: Kernel, sites: list[int], target: int) -> tuple[float, float, float]:
    """Seconds for update_ftrace_direct_add, _mod and _del."""
    ftrace, ops = kernel.ftrace, FtraceOps("benchmark")
    first, second = dict.fromkeys(sites, target), dict.fromkeys(sites, target + 16)
    add = seconds(lambda: ftrace.update_ftrace_direct_add(ops, first))
    kernel.rcu.settle()
    mod = seconds(lambda: ftrace.update_ftrace_direct_mod(ops, second))
    kernel.rcu.settle()
    delete = seconds(lambda: ftrace.update_ftrace_direct_del(ops, second))
    kernel.rcu.settle()
    return add, mod, delete


def one_by_one(kernel: Kernel, sites: list[int], target: int) -> float:
    """Seconds for text_poke_bp on each site; the sites are nops again afterwards."""

    def patch() -> None:
        with kernel.text_poke.text_mutex:
            for site in sites:
                kernel.text_poke.text_poke_bp(site, call_rel32(site, target))

    taken = seconds(patch)
    with kernel.text_poke.text_mutex:
        for site in sites:
            kernel.text_poke.batch_add(site, NOP5)
        kernel.text_poke.batch_finish()
    return taken


def main(release: str, path: str, vcpus: str = "2") -> None:
    """Measure one BTF on one flavour."""
    with Lab(release, design="batched", btf=Btf.read(path), vcpus=int(vcpus)) as lab:
        kernel = lab.kernel
        sites = sorted(kernel.ftrace.records)
        target = kernel.add_functions(FunctionText("direct", "ret", traceable=False))[0].address
        print(f"{'sites':>7}{'add':>9}{'mod':>9}{'del':>9}{'each':>9}{'sites/s':>10}{'each/add':>10}")
        for count in (*(count for count in COUNTS if count < len(sites)), len(sites)):
            some = sites[:count]
            add, mod, delete = map(min, zip(*(in_one(kernel, some, target) for _ in range(ROUNDS)), strict=True))
            each = one_by_one(kernel, some, target)
            kernel.events.clear()
            figures = "".join(f"{value:9.3f}" for value in (add, mod, delete, each))
            print(f"{count:7}{figures}{count / add:10,.0f}{each / add:10.1f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
