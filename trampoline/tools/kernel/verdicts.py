"""Verdicts of real kernels on the programs of objects: ``tramp verify --kernel``."""

import csv
import errno
import io
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from emu.vmlinux.machine_errors import RunError
from emu.vmlinux.system_calls import Refused
from trampoline.bpf.errors import ObjectError, errno_name
from trampoline.bpf.objects.bpf_object import BpfObject
from trampoline.lab.own_kernel import OwnKernel

_PROCESSED = re.compile(r"^processed (\d+) insns .*total_states (\d+)", re.MULTILINE)
_ERRORS, _PATHS, _STATISTICS = 1, 2, 4
"""``BPF_LOG_LEVEL1``, ``BPF_LOG_LEVEL2``, ``BPF_LOG_STATS``."""
_NOT_A_REASON = ("processed ", "verification time ", "stack depth ")


@dataclass(frozen=True, slots=True)
class Judged:
    """One kernel's verdict on one program.

    ``outcome``: ``accepted``; ``refused`` by the kernel; ``unresolved``, where the kernel lacks what the object's
    relocations, externs or target need; ``died``, where the kernel did not return. ``instructions`` and ``states`` are
    those that the verifier counted, None where it did not come so far. ``seconds`` of host time.
    """

    object: str
    program: str
    kernel: str
    release: str
    outcome: str
    errno: int = 0
    message: str = ""
    instructions: int | None = None
    states: int | None = None
    seconds: float = 0.0
    log: str = ""

    @property
    def accepted(self) -> bool:
        """Whether it is loaded."""
        return self.outcome == "accepted"

    def to_json(self) -> dict[str, Any]:
        """As plain values; ``errname`` beside ``errno``."""
        return asdict(self) | {"errname": errno_name(self.errno) if self.errno else None}


def judge(
    kernel: OwnKernel, file: Path, names: Sequence[str] | None = None, *, verbose: bool = False
) -> Iterator[Judged]:
    """The verdicts on an object's programs, each loaded alone with its own maps; ``verbose``: the log has all paths.

    Raises ObjectError for what is no object.
    """
    obj = BpfObject.open(file)
    for entry in obj.entries:
        if entry.autoload if names is None else entry.name in names:
            yield _judge(kernel, obj, str(file), entry.name, _PATHS if verbose else _ERRORS)


def _judge(kernel: OwnKernel, obj: BpfObject, file: str, name: str, level: int) -> Judged:
    loader = kernel.loader
    began = time.perf_counter()

    def said(outcome: str, **more: Any) -> Judged:
        seconds = round(time.perf_counter() - began, 3)
        return Judged(file, name, kernel.path, kernel.release, outcome, seconds=seconds, **more)

    with kernel.trial():
        try:
            (program,) = loader.resolve(obj, [name])
            verdict = loader.verdict(program, loader.maps_of((program,), {}, obj.btf), log_level=level | _STATISTICS)
        except ObjectError as error:
            return said("unresolved", errno=errno.ESRCH, message=error.reason)
        except Refused as error:
            return said("refused", errno=error.errno, message=str(error), log=error.log)
        except RunError as error:
            return said("died", message=str(error))
        counted = _PROCESSED.search(verdict.log)
        figures = {"instructions": int(counted[1]), "states": int(counted[2])} if counted else {}
        if verdict.is_loaded:
            return said("accepted", log=verdict.log, **figures)
        lines = [line for line in verdict.log.strip().split("\n") if line and not line.startswith(_NOT_A_REASON)]
        message = lines[-1] if lines else ""
        return said("refused", errno=verdict.errno, message=message, log=verdict.log, **figures)


def as_csv(judged: Sequence[Judged]) -> str:
    """A table, a line a verdict, without the logs."""
    text = io.StringIO()
    columns = ("object", "program", "kernel", "release", "outcome", "errname", "instructions", "states", "seconds",
               "message")  # fmt: skip
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(one.to_json() for one in judged)
    return text.getvalue()
