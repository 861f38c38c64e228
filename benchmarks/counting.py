"""What exact counting costs: ratios to the same engine without a counter, all in one run.

    python benchmarks/counting.py [--turns N] [--rounds N] [--json]

The code is shaped like a traced function's: a patch site that calls a trampoline, which saves arguments, enters, calls
a program, leaves and returns to the function; 3.4 instructions a block, two of three blocks ending in a call or ret, in
a loop. Page tables are real and data isn't executable, as on the machine. Rounds take turns with each method, and
ratios are of the fastest rounds: what else runs only ever adds.
"""

import argparse
import itertools
import json
import statistics
import struct
import time
from collections.abc import Callable
from typing import cast

from keystone import KS_ARCH_X86, KS_MODE_64, Ks
from unicorn import unicorn_const, x86_const
from unicorn.unicorn_py3.arch.intel import UcIntel
from unicorn.unicorn_py3.unicorn import Uc

from emu.counting import InstructionCounter, Method, counter_for

TEXT, TEXT_PHYSICAL = 0xFFFFFFFF81000000, 0x100000
DATA, DATA_PHYSICAL = 0xFFFF888000000000, 0x200000
PAGES = 64
LIMITS = {"native": 1.3, "each": 6.0}

SOURCE = """
    mov ecx, {turns};
    loop: mov edi, 1; mov esi, 2; call function; dec ecx; jnz loop; jmp out;
    function: call trampoline; body: lea rax, [rdi + rsi]; add rax, 3; xor edx, edx; ret;
    trampoline: push rbp; mov rbp, rsp; sub rsp, 0x30; mov [rbp - 0x18], rdi; mov [rbp - 0x10], rsi; mov [rbp - 8], rbx;
    lea rdi, [rbp - 0x20]; lea rsi, [rbp - 0x30]; call enter; mov rbx, rax; test rax, rax; je skip;
    lea rdi, [rbp - 0x18]; xor eax, eax; call program;
    skip: mov rsi, rbx; lea rdi, [rbp - 0x20]; lea rdx, [rbp - 0x30]; call exit;
    mov rsi, [rbp - 0x10]; mov rdi, [rbp - 0x18]; mov rbx, [rbp - 8]; leave; ret;
    enter: push rbx; mov rbx, rdi; call read_lock; lock inc dword ptr [rbx]; mov eax, [rbx]; cmp eax, 0; je busy;
    mov [rsi], rax; mov eax, 1; pop rbx; ret; busy: xor eax, eax; pop rbx; ret;
    exit: push rbx; mov rbx, rdi; test rsi, rsi; je idle; nop; nop;
    idle: lock dec dword ptr [rbx]; call read_unlock; pop rbx; ret;
    read_lock: mov rax, [rsi]; add rax, 1; test rax, rax; je never; nop; never: ret;
    read_unlock: mov rax, [rdx]; cmp rax, -1; je last; ret; last: nop; ret;
    program: mov rax, [rdi]; add rax, [rdi + 8]; cmp rax, 100; ja large; xor eax, eax; ret; large: mov eax, 1; ret;
    out: nop
"""


def new_engine(code: bytes) -> Uc:
    """An engine with the code at TEXT, executable and read-only, and data at DATA, writable and never executable."""
    uc = cast(UcIntel, Uc(unicorn_const.UC_ARCH_X86, unicorn_const.UC_MODE_64))
    uc.ctl_set_tcg_buffer_size(4 << 20)
    uc.mem_map(0, 4 << 20)
    tables = itertools.count(0x2000, 0x1000)

    def map_page(virtual: int, physical: int, flags: int) -> None:
        table = 0x1000
        for shift in (39, 30, 21):
            entry = table + (virtual >> shift & 511) * 8
            (value,) = struct.unpack("<Q", uc.mem_read(entry, 8))
            if not value:
                value = next(tables) | 3
                uc.mem_write(entry, struct.pack("<Q", value))
            table = value & ~0xFFF
        uc.mem_write(table + (virtual >> 12 & 511) * 8, struct.pack("<Q", physical | flags))

    for page in range(PAGES):
        map_page(TEXT + page * 0x1000, TEXT_PHYSICAL + page * 0x1000, 1)
        map_page(DATA + page * 0x1000, DATA_PHYSICAL + page * 0x1000, 3 | 1 << 63)
    uc.reg_write(x86_const.UC_X86_REG_CR4, uc.reg_read(x86_const.UC_X86_REG_CR4) | 1 << 5)
    uc.reg_write(x86_const.UC_X86_REG_CR3, 0x1000)
    uc.msr_write(0xC0000080, uc.msr_read(0xC0000080) | 0xD00)
    uc.reg_write(x86_const.UC_X86_REG_CR0, 0x80010033)
    uc.reg_write(x86_const.UC_X86_REG_RSP, DATA + PAGES * 0x1000 // 2)
    uc.mem_write(TEXT_PHYSICAL, code)
    return uc


class Contestant:
    """An engine and, but for the bare one, its counter."""

    def __init__(self, code: bytes, method: Method | None) -> None:
        self.uc = new_engine(code)
        self.end = TEXT + len(code)
        self.counter: InstructionCounter | None = None
        if method is not None:
            self.counter = counter_for(self.uc, self.read_code, method)

    def read_code(self, address: int, size: int) -> bytes:
        """Code as the engine sees it."""
        return bytes(self.uc.mem_read(address - TEXT + TEXT_PHYSICAL, size))

    def seconds(self) -> float:
        """Processor time of one run, with what a caller does around it."""
        began = time.thread_time()
        if self.counter is not None:
            self.counter.begin()
        self.uc.emu_start(TEXT, self.end)
        if self.counter is not None:
            self.counter.end(self.uc.reg_read(x86_const.UC_X86_REG_RIP), False)
        return time.thread_time() - began


def microseconds(action: Callable[[], object], times: int = 200) -> float:
    """Median processor time of an action."""
    taken = []
    for _ in range(times):
        began = time.thread_time()
        action()
        taken.append(time.thread_time() - began)
    return statistics.median(taken) * 1e6


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--turns", type=int, default=50_000, help="calls of the traced function (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=31, help="runs of each method (default: %(default)s)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    code = bytes(Ks(KS_ARCH_X86, KS_MODE_64).asm(SOURCE.format(turns=options.turns), TEXT)[0])
    methods: tuple[Method, ...] = ("native", "each")
    bare = Contestant(code, None)
    counted = {method: Contestant(code, method) for method in methods}
    taken: dict[str, list[float]] = {method: [] for method in methods}
    bare_seconds = []
    for _ in range(options.rounds):
        bare_seconds.append(bare.seconds())
        for method, contestant in counted.items():
            taken[method].append(contestant.seconds())
    # Many times slower, so that three rounds say enough.
    portable = Contestant(code, "portable")
    taken["portable"] = [portable.seconds() for _ in range(min(3, options.rounds))]
    ratios = {method: min(seconds) / min(bare_seconds) for method, seconds in taken.items()}

    first = counted["native"].counter
    assert first is not None
    instructions = first.instructions // options.rounds
    for contestant in (*counted.values(), portable):
        counter = contestant.counter
        assert counter is not None
        counts = counter.counts()
        runs = options.rounds if contestant is not portable else min(3, options.rounds)
        assert {at: count // runs for at, count in counts.items()} == {
            at: count // options.rounds for at, count in first.counts().items()
        }
        assert counter.unbalanced_returns == 0
    result = {
        "instructions": instructions,
        "bare_instructions_per_second": instructions / min(bare_seconds),
        "ratios": ratios,
        "counts_microseconds": microseconds(first.counts),
        "counted_addresses": len(first.counts()),
    }
    if options.json:
        print(json.dumps(result, indent=2))
        return
    speed = result["bare_instructions_per_second"] / 1e6
    print(f"{instructions:,} instructions a run, {speed:,.0f} M/s without a counter")
    for name, ratio in ratios.items():
        limit = f"   at most {LIMITS[name]}" if name in LIMITS else ""
        print(f"{name:10}{ratio:7.2f} x{limit}")
    print(f"counts() of {result['counted_addresses']} addresses: {result['counts_microseconds']:.0f} us")


if __name__ == "__main__":
    main()
