"""How long a kernel with every function of a BTF takes: reading it, booting, selecting, and what that needs of memory.

python benchmarks/populate.py RELEASE BTF
"""

import resource
import sys
import time

from trampoline.bpf.btf.btf import Btf
from trampoline.lab import Lab
from trampoline.lab.btf_functions import attachable


def memory() -> int:
    """MiB that the process had at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def main(release: str, path: str) -> None:
    """Measure one BTF on one flavour."""
    Lab(release).close()
    before, moments = memory(), [time.perf_counter()]
    btf = Btf.read(path)
    moments.append(time.perf_counter())
    with Lab(release, btf=btf) as lab:
        moments.append(time.perf_counter())
        print(f"{len(lab.population.functions or ())} functions, {memory() - before} MiB")
        print(f"read {moments[1] - moments[0]:.3f} s, boot {moments[2] - moments[1]:.3f} s")
        start = time.perf_counter()
        rows = lab.population.select(["*"])
        print(f"select {len(rows)}: {time.perf_counter() - start:.3f} s")
        start = time.perf_counter()
        ids, refused = attachable(lab.flavour, lab.population.functions or btf)
        print(f"attachable {len(ids)}, refused {dict(refused)}: {time.perf_counter() - start:.3f} s")


if __name__ == "__main__":
    main(*sys.argv[1:])
