"""What is known of stacks holds at every instruction of whole calls, whatever design they go through."""

from collections.abc import Iterator
from functools import cache

import pytest

from emu.debug import Debugger, DebugStopReason
from emu.machine.machine import Machine
from emu.machine.unwind import CALLEE_SAVED, UnwindRow, unwind_rows
from trampoline.designs import DESIGNS
from trampoline.lab import Workload, open_workload

PROGRAMS = ("fentry", "fexit")


class Shadow:
    """The frames of a call, kept by watching calls and returns: where each ends, the return address that was there, and
    what its caller had in registers.
    """

    def __init__(self, machine: Machine, registers: dict[str, int]) -> None:
        self.machine = machine
        self.frames = [self.frame(registers)]

    def frame(self, registers: dict[str, int]) -> tuple[int, int, dict[str, int]]:
        return registers["rsp"] + 8, self.machine.read_u64(registers["rsp"]), registers

    def after(self, now: dict[str, int], code: str, *, enters: bool) -> None:
        pushed = code.startswith("jmp") and enters and now["rsp"] + 8 < self.frames[-1][0]
        if code.startswith("call") or pushed:
            # A thunk pushes the address of the function that it is for, as if that had called what comes next.
            self.frames.append(self.frame(now))
        elif code.startswith("ret"):
            while self.frames and self.frames[-1][0] <= now["rsp"]:
                self.frames.pop()


@cache
def rows_of(code: bytes, address: int, replaced_at: int | None) -> list[tuple[int, UnwindRow]]:
    return unwind_rows(code, address, replaced_at)


def row_at(rows: list[tuple[int, UnwindRow]], offset: int) -> UnwindRow:
    return [row for start, row in rows if start <= offset][-1]


def steps(debugger: Debugger) -> Iterator[tuple[dict[str, int], str]]:
    while True:
        yield debugger.registers(), debugger.code_line(debugger.rip).text
        if debugger.step().reason is DebugStopReason.DONE:
            return


def check(options: Workload) -> int:
    """How many instructions were checked."""
    with open_workload(options) as ready, Debugger(ready.lab.kernel) as debugger:
        ready.begin(debugger)
        machine = ready.lab.kernel.machine
        shadow, text, checked = None, "", 0
        for now, following in steps(debugger):
            image = machine.images.at(now["rip"])
            if shadow is None:
                shadow = Shadow(machine, now)
            else:
                shadow.after(now, text, enters=image is not None and now["rip"] == image.address)
            text = following
            if image is None:
                continue  # the stub of a host call
            names = machine.images.stack_names(image)
            rows = rows_of(image.code, image.address, names.replaced_at if names is not None else None)
            row = row_at(rows, now["rip"] - image.address)
            where = f"{image.name}+{now['rip'] - image.address:#x}: {following}"
            assert row.base, where
            end = now[row.base] + row.offset
            frames = shadow.frames
            is_replaced = names is not None and names.replaced_at is not None
            if end != frames[-1][0] and (is_replaced or following.startswith("ret")):
                # The return address into the function in between is no more, or was just dropped.
                frames = frames[:-1]
            assert end == frames[-1][0], where
            assert machine.read_u64(end - 8) == frames[-1][1], where
            entered = frames[-1][2]
            saved = dict(row.saved)
            for name in CALLEE_SAVED:
                value = machine.read_u64(end - saved[name]) if name in saved else now[name]
                assert value == entered[name], f"{where}: {name}"
            checked += 1
        return checked


@pytest.mark.parametrize(
    ("design", "flavour"),
    [
        *((design, "7.2") for design in DESIGNS),
        ("per-function", "6.1"),
        ("per-function", "6.12"),
        ("specialised", "6.1"),
        ("tracing-multi-v1", "6.12"),
    ],
)
def test_every_instruction_of_a_call(design, flavour):
    options = Workload(
        "bpf_fentry_test6", PROGRAMS, ("bpf_fentry_test6(1, 2, 3, 4, 5, 6)",), design=design, flavour=flavour
    )
    assert check(options) > 70


@pytest.mark.parametrize(
    "options",
    [
        Workload("bpf_modify_return_test", ("fmod_ret", "fentry", "fexit"), ("bpf_modify_return_test(1, &2)",)),
        Workload("int f(int a)", ("fsession",), ("f(1)",), flavour="7.2", session_cookie=True),
        Workload("bpf_fentry_test1", ("fexit",), ("bpf_fentry_test1(1)",), sleepable=True, config="lazy"),
        Workload("tests/selftests/many_args.o"),
        Workload("tests/selftests/bpf_cookie.o"),
    ],
    ids=["fmod_ret", "fsession", "sleepable", "many_args.o", "bpf_cookie.o"],
)
def test_kinds_of_programs(options):
    assert check(options) > 50
