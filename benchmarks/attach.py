"""How long attach, call and detach take, and where the time goes: medians of one run, in milliseconds and as shares.

    python benchmarks/attach.py [ROUNDS]
"""

import statistics
import sys
import time
from collections.abc import Callable

from trampoline.lab import Link, Tracing

ROUNDS = 200


def timed(operation: Callable[[], object], into: list[float]) -> object:
    start = time.perf_counter()
    result = operation()
    into.append((time.perf_counter() - start) * 1000)
    return result


def main(rounds: int = ROUNDS) -> None:
    print(f"{'':8}{'attach':>9}{'call':>9}{'detach':>9}{'all':>9}   (ms, medians of {rounds})")
    for flavour in ("6.1", "6.12", "7.2"):
        for kind in ("fentry", "fexit"):
            with Tracing(flavour) as lab:
                prog = lab.prog(kind, "xor eax, eax\nret")
                times: dict[str, list[float]] = {"attach": [], "call": [], "detach": []}
                for _ in range(rounds):
                    link = timed(lambda: lab.attach(prog, "bpf_fentry_test1"), times["attach"])
                    assert isinstance(link, Link)
                    timed(lambda: lab.call("bpf_fentry_test1", 1), times["call"])
                    timed(link.detach, times["detach"])
                medians = [statistics.median(values) for values in times.values()]
                print(f"{flavour:6}{kind:>7}" + "".join(f"{value:9.3f}" for value in (*medians, sum(medians)))[3:])


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
