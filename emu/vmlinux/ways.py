"""Instructions that each way into a function costs on one kernel: with one program, and with a further one.

The cost is the instructions of a call with the programs attached, less those without: the program ``r0 = 0; exit`` is
part of it, the function's own instructions are not. After each way the function's bytes and the count of a call are
compared with those before: a way that does not leave everything as it was raises :class:`NotRestored`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from emu.vmlinux.btf_layout import UnknownLayout
from emu.vmlinux.errors import NoSymbol, VmlinuxError
from emu.vmlinux.floor.memory import allocate, release
from emu.vmlinux.system_calls import AttachType, ProgType, Refused
from emu.vmlinux.unbooted_kernel import Link

if TYPE_CHECKING:
    from emu.vmlinux.run import Run
    from emu.vmlinux.unbooted_kernel import Program, UnbootedKernel

__all__ = ["WAYS", "NotRestored", "Row", "refusals", "rows"]

RETURN_0 = bytes.fromhex("b7000000000000009500000000000000")
"""``r0 = 0; exit``."""
_REFUSALS = (Refused, NoSymbol, UnknownLayout)
_FUNCTION, _VALUE = "bpf_fentry_test1", 41
_EVENT, _EVENT_FUNCTION = "task_rename", "__set_task_comm"


class NotRestored(VmlinuxError):
    """A function that is not as it was after everything was detached from it."""


@dataclass(frozen=True, slots=True)
class Row:
    """One way in: ``instructions`` with one program, ``further`` those that a second one adds; functions in order.

    Where the kernel refuses the way ``refused`` says so in its words, and the numbers are None.
    """

    way: str
    instructions: int | None
    further: int | None
    by_function: tuple[tuple[str, int], ...]
    refused: str = ""
    without: tuple[tuple[str, int], ...] = ()
    """Functions of the call before a program was attached: ``by_function`` less these is ``instructions``."""


_Attach = Callable[["UnbootedKernel", "Program"], "Link"]


@dataclass(frozen=True, slots=True)
class _Way:
    name: str
    kind: int
    attach_type: int | str
    attach: _Attach
    is_event: bool = False
    by_btf: bool = False


def _direct(kernel: UnbootedKernel, program: Program) -> Link:
    return kernel.attach(program)


def _in_body(kernel: UnbootedKernel, program: Program) -> Link:
    address = kernel.address(_FUNCTION)
    return kernel.attach_probe(program, _FUNCTION, kernel.machine.body(address) - address)


def _tracing_multi(kernel: UnbootedKernel, program: Program) -> Link:
    number = kernel.machine.layout.function(_FUNCTION)
    if number is None:
        raise NoSymbol(_FUNCTION)
    return Link(kernel.calls.create_tracing_multi_link(program.fd, program.attach_type, (number,)))


_TRACING, _KPROBE = ProgType.TRACING, ProgType.KPROBE
_MULTI = AttachType.TRACE_KPROBE_MULTI
WAYS = (
    _Way("fentry", _TRACING, AttachType.TRACE_FENTRY, _direct, by_btf=True),
    _Way("fexit", _TRACING, AttachType.TRACE_FEXIT, _direct, by_btf=True),
    _Way("fmodret", _TRACING, AttachType.MODIFY_RETURN, _direct, by_btf=True),
    _Way("rawtp", ProgType.RAW_TRACEPOINT, 0, lambda k, p: k.attach_raw_tracepoint(p, _EVENT), is_event=True),
    _Way("tp", ProgType.TRACEPOINT, 0, lambda k, p: k.attach_tracepoint(p, _EVENT), is_event=True),
    _Way("kprobe", _KPROBE, 0, lambda k, p: k.attach_probe(p, _FUNCTION)),
    _Way("kprobe-int3", _KPROBE, 0, _in_body),
    _Way("kretprobe", _KPROBE, 0, lambda k, p: k.attach_probe(p, _FUNCTION, on_return=True)),
    _Way("kprobe-multi", _KPROBE, _MULTI, lambda k, p: k.attach_multi(p, (_FUNCTION,))),
    # Attach types of some kernels only, by their names in the kernel's own enum bpf_attach_type.
    _Way("fsession", _TRACING, "BPF_TRACE_FSESSION", _direct, by_btf=True),
    _Way("kprobe-session", _KPROBE, "BPF_TRACE_KPROBE_SESSION", lambda k, p: k.attach_multi(p, (_FUNCTION,))),
    _Way("kretprobe-multi", _KPROBE, _MULTI, lambda k, p: k.attach_multi(p, (_FUNCTION,), on_return=True)),
    _Way("fentry-multi", _TRACING, "BPF_TRACE_FENTRY_MULTI", _tracing_multi),
    _Way("fexit-multi", _TRACING, "BPF_TRACE_FEXIT_MULTI", _tracing_multi),
    _Way("fsession-multi", _TRACING, "BPF_TRACE_FSESSION_MULTI", _tracing_multi),
)


def rows(kernel: UnbootedKernel, names: tuple[str, ...] | None = None) -> Iterator[Row]:
    """The ways of these names, by default all; each leaves the kernel as it was, also when it is refused.

    Raises :class:`NotRestored`, and what the machine's calls raise when the kernel dies.
    """
    for way in WAYS:
        if names is None or way.name in names:
            with kernel.trial():
                yield _measure(kernel, way)


def refusals(kernel: UnbootedKernel) -> dict[str, str]:
    """Each way, and in the kernel's words why it is refused; "" where a program can be attached. Nothing is called."""
    found = {}
    for way in WAYS:
        with kernel.trial():
            try:
                way.attach(kernel, _load(kernel, way))
                kernel.drain()
                found[way.name] = ""
            except _REFUSALS as error:
                kernel.drain()
                found[way.name] = str(error)
    return found


def _load(kernel: UnbootedKernel, way: _Way) -> Program:
    attach_type = way.attach_type
    if isinstance(attach_type, str):
        known = kernel.machine.layout.enumerators("bpf_attach_type")
        if attach_type not in known:
            raise UnknownLayout(attach_type)
        attach_type = known[attach_type]
    return kernel.load(RETURN_0, way.kind, attach_type, _FUNCTION if way.by_btf else "")


def _measure(kernel: UnbootedKernel, way: _Way) -> Row:
    function = _EVENT_FUNCTION if way.is_event else _FUNCTION
    machine = kernel.machine
    comm = allocate(machine, 64)
    machine.memory.write(comm, b"renamed\0")

    def call() -> Run:
        if way.is_event:
            return kernel.call(function, machine.symbols["init_task"], comm, 0)
        return kernel.call(function, _VALUE)

    attach_type = way.attach_type
    if isinstance(attach_type, str):
        known = machine.layout.enumerators("bpf_attach_type")
        if attach_type not in known:
            return Row(way.name, None, None, (), f"this kernel has no {attach_type}")
        attach_type = known[attach_type]
    try:
        site, without = kernel.site(function), call()
        links: list[Link] = []
        programs: list[Program] = []
        runs: list[Run] = []
        for _ in range(2):
            try:
                program = _load(kernel, way)
                programs.append(program)
                links.append(way.attach(kernel, program))
            except _REFUSALS as error:
                if not links:
                    return Row(way.name, None, None, (), str(error))
                break
            runs.append(call())
        for link in links:
            kernel.detach(link)
        for program in programs:
            kernel.unload(program)
        after = call()
        if kernel.site(function) != site or (after.rax, after.instructions) != (without.rax, without.instructions):
            raise NotRestored(f"{way.name}: {function} is not as it was before")
        cost = runs[0].instructions - without.instructions
        further = runs[1].instructions - runs[0].instructions if len(runs) > 1 else None
        by_function = tuple(runs[0].totals.items())
        return Row(way.name, cost, further, by_function, without=tuple(without.totals.items()))
    finally:
        release(machine, comm)
