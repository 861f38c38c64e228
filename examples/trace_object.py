"""Trace a function that a compiler made: an object of ``gcc -c -pg -mfentry``, linked into the synthetic kernel."""

import sys
from pathlib import Path

from emu.kernel.module.load_object import load_object
from trampoline.lab import Lab

OBJECT = Path(__file__).parent / "sum.o"
PROTOTYPES = {"sum_to": "long sum_to(int n)", "add": "int add(int a, int b)"}


def main(path: Path = OBJECT) -> None:
    with Lab("6.12") as lab:
        load_object(lab.kernel, path, PROTOTYPES)
        seen: list[tuple[int | bytes, ...]] = []
        lab.attach(lab.prog("fentry", lambda ctx: seen.append(ctx.args)), "add")
        lab.attach(lab.prog("fexit", lambda ctx: print(f"sum_to{ctx.args} = {ctx.ret}")), "sum_to")
        call = lab.call("sum_to", 4)
        print(f"add was called with {seen}")
        if call.counts is not None:
            print(f"{call.counts.instructions} instructions, {call.counts.by_function['sum_to']} of them in sum_to")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
