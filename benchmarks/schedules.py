"""Schedules per second of CPU time: attach-during-call on each design, with what looking at coverage costs.

    python benchmarks/schedules.py [--rounds 20] [--against OTHER_TREE]

With --against the same is measured in another tree of the project, round by round in turn, so that both meet the same
machine; only what both can do is compared.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

ROUND = 25
DESIGNS = ("per-function", "batched", "tracing-multi-v2", "tracing-multi-v1", "specialised")
SCENARIO, SCHEDULER = "attach-during-call", "pct:3"


def serve(design: str, covers: bool) -> None:
    """Run a round for every line that comes in, and answer with the seconds that it took."""
    from emu.schedule.schedulers.spec import scheduler_for
    from trampoline.tools.explore.session import ScheduleSession

    options = {"covers": True} if covers else {}
    with ScheduleSession(SCENARIO, design, **options) as session:
        scheduler = scheduler_for(SCHEDULER, 1)
        for _ in sys.stdin:
            begun = time.process_time()
            for _ in range(ROUND):
                scheduler.begin()
                scheduler.end(session.run(scheduler))
            print(time.process_time() - begun, flush=True)


class Server:
    """A process that runs rounds in one tree."""

    def __init__(self, tree: Path, design: str, covers: bool) -> None:
        command = [sys.executable, str(Path(__file__).resolve()), "--serve", design, *(["--covers"] if covers else [])]
        self._process = subprocess.Popen(
            command, env=os.environ | {"PYTHONPATH": str(tree)}, cwd=tree,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.rates: list[float] = []

    def round(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        self.rates.append(ROUND / float(self._process.stdout.readline()))

    def close(self) -> None:
        self._process.communicate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--covers", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve, arguments.covers)
        return
    here = Path(__file__).resolve().parents[1]
    print(f"{'schedules/s: median (best)':30}{'here':>14}{'with coverage':>16}{'other tree':>14}")
    for design in DESIGNS:
        servers = [Server(here, design, False), Server(here, design, True)]
        if arguments.against:
            servers.append(Server(arguments.against.resolve(), design, False))
        for number in range(arguments.rounds + 2):
            for server in servers:
                server.round()
                if number < 2:
                    server.rates.clear()
        for server in servers:
            server.close()
        cells = [f"{median(server.rates):.0f} ({max(server.rates):.0f})" for server in servers]
        print(f"{SCENARIO + ', ' + design:34}" + "".join(cell.rjust(14) for cell in cells), flush=True)


if __name__ == "__main__":
    main()
