"""Clocks and random numbers: the same in every run.

Contract: each reading of any clock gives one microsecond more than the last one. Random numbers come from a 64-bit
linear congruential generator with a fixed seed. Both are part of the guest's memory, so that a restored state goes on
alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from emu.vmlinux.floor.state import CLOCK, SEED
from emu.vmlinux.floor.table import Group, Host

if TYPE_CHECKING:
    from emu.vmlinux.machine import KernelMachine
    from emu.vmlinux.unbooted_machine import UnbootedMachine

__all__ = ["GROUP"]

_STEP_NS = 1000
_WIDTHS = {"get_random_u8": 8, "get_random_u16": 16, "get_random_u32": 32}


def _read_clock(machine: UnbootedMachine, _cpu: KernelMachine, _name: str) -> int:
    now = machine.memory.u64(CLOCK) + _STEP_NS
    machine.memory.write_u64(CLOCK, now)
    return now


def _draw(machine: UnbootedMachine) -> int:
    seed = machine.memory.u64(SEED) * 6364136223846793005 + 1442695040888963407 & (1 << 64) - 1
    machine.memory.write_u64(SEED, seed)
    return seed >> 32


def _random(machine: UnbootedMachine, cpu: KernelMachine, name: str) -> int:
    if name == "get_random_u64":
        return _draw(machine) << 32 | _draw(machine)
    if name == "__get_random_u32_below":
        return _draw(machine) % max(1, cpu.regs.rdi & 0xFFFFFFFF)
    return _draw(machine) & (1 << _WIDTHS[name]) - 1


def _random_bytes(machine: UnbootedMachine, cpu: KernelMachine, _name: str) -> int:
    machine.memory.write(cpu.regs.rdi, bytes(_draw(machine) & 0xFF for _ in range(cpu.regs.rsi)))
    return 0


GROUP = Group(
    "time",
    (
        Host(
            "ktime_get ktime_get_with_offset ktime_get_coarse_with_offset ktime_get_mono_fast_ns "
            "ktime_get_boot_fast_ns ktime_get_raw_fast_ns ktime_get_raw ktime_get_real_seconds ktime_get_seconds "
            "ktime_get_tai_fast_ns ktime_get_real_fast_ns local_clock local_clock_noinstr sched_clock "
            "sched_clock_noinstr native_sched_clock sched_clock_cpu",
            _read_clock,
        ),
        Host("get_random_u8 get_random_u16 get_random_u32 get_random_u64 __get_random_u32_below", _random),
        Host("get_random_bytes", _random_bytes),
    ),
)
