"""How long attach, call and detach take: medians of one run, in milliseconds.

python benchmarks/attach.py [ROUNDS]
"""

import itertools
import statistics
import sys
import time

from trampoline.lab import Lab

ROUNDS = 200


def measure(flavour: str, kind: str, rounds: int) -> list[float]:
    """Median milliseconds of attach, call and detach."""
    times: list[tuple[float, ...]] = []
    with Lab(flavour) as lab:
        prog = lab.prog(kind, "xor eax, eax\nret")
        for _ in range(rounds):
            moments = [time.perf_counter()]
            link = lab.attach(prog, "bpf_fentry_test1")
            moments.append(time.perf_counter())
            lab.call("bpf_fentry_test1", 1)
            moments.append(time.perf_counter())
            link.detach()
            moments.append(time.perf_counter())
            times.append(tuple((after - before) * 1000 for before, after in itertools.pairwise(moments)))
    return [statistics.median(column) for column in zip(*times, strict=True)]


def main(rounds: int = ROUNDS) -> None:
    """Measure every flavour."""
    print(f"{'':13}{'attach':>9}{'call':>9}{'detach':>9}{'all':>9}   (ms, medians of {rounds})")
    for flavour in ("6.1", "6.12", "7.2"):
        for kind in ("fentry", "fexit"):
            medians = measure(flavour, kind, rounds)
            print(f"{flavour:6}{kind:7}" + "".join(f"{value:9.3f}" for value in (*medians, sum(medians))))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
