"""Cold start of `tramp`: the fastest of several processes, elapsed and processor time in seconds.

python benchmarks/cold_start.py [PROCESSES]
"""

import os
import subprocess
import sys
import time
from resource import RUSAGE_CHILDREN, getrusage

PROCESSES = 10
COMMANDS = {
    "tramp --help": ["--help"],
    "tramp show": ["show", "bpf_fentry_test1", "--fentry"],
}


def measure(argv: list[str]) -> tuple[float, float]:
    """Elapsed and processor seconds of one process."""
    # Modules are compiled once, not by each process.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before, start = getrusage(RUSAGE_CHILDREN), time.perf_counter()
    command = [sys.executable, "-m", "trampoline", *argv]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True, env=environment)
    elapsed, after = time.perf_counter() - start, getrusage(RUSAGE_CHILDREN)
    return elapsed, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Print a line for each command."""
    processes = int(sys.argv[1]) if len(sys.argv) > 1 else PROCESSES
    print(f"{'':14}{'elapsed':>9}{'processor':>11}")
    for title, argv in COMMANDS.items():
        measure(argv)
        elapsed, processor = (min(column) for column in zip(*(measure(argv) for _ in range(processes)), strict=True))
        print(f"{title:14}{elapsed:9.3f}{processor:11.3f}")


if __name__ == "__main__":
    main()
