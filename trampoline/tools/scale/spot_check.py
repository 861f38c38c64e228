"""Check of functions called before, while and after a program is attached: their results, and the program's runs."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from trampoline.bpf.errors import KernelError, PrototypeError
from trampoline.bpf.prog import BpfProg
from trampoline.lab import Lab
from trampoline.lab.functions import KernelFunction

_ARGS = 12
_ARG_BYTES = 64
"""Bytes that each argument points to; selftest functions read and write a few of them."""


@dataclass(frozen=True, slots=True)
class _Sample:
    function: KernelFunction
    bytes: int
    """Mask of the defined bits of the return value."""
    value: int


class Check:
    """Calls of some functions of a kernel, always with the same arguments: pointers to zeros."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._runs = lab.kernel.module_data(8, 8)
        self._memory = lab.kernel.module_data(_ARGS * _ARG_BYTES, _ARG_BYTES)
        self._samples: list[_Sample] = []
        self.program = f"mov rax, {self._runs:#x}\ninc qword ptr [rax]\nxor eax, eax\nret"
        """Assembly text of a program that counts its runs and changes nothing."""

    def sample(self, prog: BpfProg, functions: Sequence[KernelFunction], every: int) -> None:
        """Call the first of each ``every`` functions that is attachable and callable."""
        if not every:
            return
        for start in range(0, len(functions), every):
            for function in functions[start : start + every]:
                if self._is_callable(function) and is_attachable(self._lab, prog, function):
                    model = self._lab.target(function).model
                    size = min(model.ret_size or 0, 8)
                    self._samples.append(_Sample(function, size, self._call(function, size)))
                    break

    def run(self, attached: bool, without: Collection[str] = ()) -> tuple[int, set[str]]:
        """Call the functions again, except some names; returns their number, and the names of those with another value,
        or with a run of the program while not ``attached``, or without one while attached.
        """
        machine, called, wrong = self._lab.kernel.machine, 0, set()
        for sample in self._samples:
            name = sample.function.qualified
            if name in without:
                continue
            machine.write_u64(self._runs, 0)
            same = self._call(sample.function, sample.bytes) == sample.value
            called += 1
            if not same or (machine.read_u64(self._runs) > 0) is not attached:
                wrong.add(name)
        return called, wrong

    def _is_callable(self, function: KernelFunction) -> bool:
        """False for functions with the effect of kernel routines, which do more than return a value."""
        kernel = self._lab.kernel
        return self._lab.population.functions is None or kernel.functions.stamped_at(function.address) is not None

    def _call(self, function: KernelFunction, size: int) -> int:
        self._lab.kernel.machine.write(self._memory, bytes(_ARGS * _ARG_BYTES))
        args = [self._memory + _ARG_BYTES * i for i in range(_ARGS)]
        call = self._lab.call(function.address, *args[:6], stack_args=args[6:])
        return call.value & ((1 << 8 * size) - 1)


def is_attachable(lab: Lab, prog: BpfProg, function: KernelFunction) -> bool:
    """True if a multi program may be attached to this function."""
    try:
        target = lab.target(function)
        lab.design.check(target, prog)
    except (KernelError, PrototypeError):
        return False
    return target.site_offset is not None
