"""One call of a real kernel's function: its value and what it executed, in order."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import Final

from capstone import CS_ARCH_X86, CS_MODE_64, Cs

from emu.vmlinux.code_names import CodeNames

_LONGEST: Final = 15
_BPF_PROGRAM: Final = "bpf_prog_"
ENDBR: Final = (b"\xf3\x0f\x1e\xfa", b"\x66\x0f\x1f\x00", b"\x0f\x1f\x40\xd6")
"""endbr64, and what kernels leave where they seal one (``gen_endbr_poison``, arch/x86/include/asm/ibt.h)."""


@dataclass(frozen=True, slots=True)
class KernelMessage:
    """A line that the kernel logged during the call, or a WARN that it came by. ``level`` is printk's, 4 for a WARN."""

    level: int
    text: str


@dataclass(frozen=True, slots=True)
class TakenException:
    """An exception that the kernel's own handler took: vector, guest address of the instruction, faulting address."""

    vector: int
    rip: int
    address: int | None = None


@dataclass
class Run:
    """A call that has returned.

    ``rax`` is the whole register. ``program_counters``: the address of every instruction executed, in order, one that
    a rep prefix repeats once; empty where nothing was counted. ``seconds`` of host time.
    """

    function: int
    rax: int
    seconds: float
    program_counters: list[int]
    names: CodeNames
    read_code: Callable[[int, int], bytes]
    return_address: int
    exceptions: list[TakenException] = field(default_factory=list)
    messages: list[KernelMessage] = field(default_factory=list)

    @property
    def instructions(self) -> int:
        """Instructions executed, 0 where nothing was counted."""
        return len(self.program_counters)

    @cached_property
    def by_function(self) -> list[tuple[str, int]]:
        """Function and instructions of each stretch of the run, in the order in which control passed."""
        names = map(self.names.function, self.program_counters)
        return [(name, sum(1 for _ in stretch)) for name, stretch in groupby(names)]

    @cached_property
    def totals(self) -> dict[str, int]:
        """Instructions of each function, in the order of the first entry."""
        sums: dict[str, int] = {}
        for name, count in self.by_function:
            sums[name] = sums.get(name, 0) + count
        return sums

    @cached_property
    def unbalanced_returns(self) -> int:
        """Returns that did not go where the last call said: what a CPU's return stack mispredicts."""
        decoder = Cs(CS_ARCH_X86, CS_MODE_64)
        known: dict[int, int] = {}
        stack, unbalanced = [self.return_address], 0
        for address, after in zip(
            self.program_counters, [*self.program_counters[1:], self.return_address], strict=True
        ):
            kind = known.get(address)
            if kind is None:
                kind = known[address] = _flow(decoder, self.read_code(address, _LONGEST), address)
            if kind > 0:
                stack.append(kind)
            elif kind < 0 and (not stack or stack.pop() != after):
                unbalanced += 1
        return unbalanced

    @cached_property
    def in_body(self) -> int:
        """Instructions of the called function itself, without the one at its patch site."""
        start, end = self.names.span(self.function)
        site = start + (4 if self.read_code(start, 4) in ENDBR else 0)
        return sum(start <= address < end and address != site for address in self.program_counters)

    @cached_property
    def in_programs(self) -> int:
        """Instructions of BPF programs."""
        return sum(count for name, count in self.totals.items() if name.startswith(_BPF_PROGRAM))

    @property
    def way_in(self) -> int:
        """T: instructions that are neither the function's own nor a program's: what being attached costs."""
        return self.instructions - self.in_body - self.in_programs


def _flow(decoder: Cs, code: bytes, address: int) -> int:
    """The return address that a call pushes, -1 for a near return, else 0."""
    for _address, size, mnemonic, _operands in decoder.disasm_lite(code, address, 1):
        word = mnemonic.split()[-1]
        return address + size if word == "call" else -1 if word == "ret" else 0
    return 0
