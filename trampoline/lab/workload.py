"""A workload: a kernel with programs attached, and the calls that run in it.

>>> with open_workload(Workload("bpf_fentry_test1", programs=("fexit",), calls=("bpf_fentry_test1(41)",))) as ready:
...     ready.call(ready.calls[0]).value
42
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Protocol

from emu.errors import GuestFault
from emu.kernel.text.functions import AssemblyFunctions, FunctionText
from emu.machine.vcpu import Call
from trampoline.bpf.btf.btf import Btf
from trampoline.bpf.btf.c_declaration import parse_model
from trampoline.bpf.btf.func_model import FuncModel
from trampoline.bpf.errors import TrampolineError
from trampoline.bpf.prog import Uses
from trampoline.designs import design_info
from trampoline.lab.call_text import CallText
from trampoline.lab.lab import Lab
from trampoline.lab.links.link import Link
from trampoline.lab.loaded_object import LoadedObject

RETURN_0 = "xor eax, eax\nret"
"""The programs of a function or prototype, and the function that a prototype stands for."""
MAX_CPUS = 8
MAX_INSTRUCTIONS = 50_000_000
"""Of one call: what takes longer is taken for a loop without an end."""
_ON_CPU = re.compile(r"(?P<call>.*\))\s*@\s*(?P<cpu>\d+)\s*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Workload:
    """A function, a C prototype or an object with programs on it, and calls, as on the command line of ``tramp step``.

    ``target``: text, of which ``*.o`` is an object; a path is one whatever its name. ``programs``: attach types, for a
    function or prototype; none given is one fentry. ``calls``: ``f(1, 2)``, with ``@1`` after it on that CPU; None is
    one call of the target (of an object: of the first function that it has programs on). ``parallel``: a call that
    names no CPU has one of its own; else it is made on CPU 0. ``live``: programs are attached by operations.
    ``cookies``: by program, "" for all. Of an object: ``names`` of the programs to load, None for all; ``data``, first
    values of global variables by name; ``targets``, other functions than the sections' by program. ``testmod``:
    bpf_testmod is loaded.
    """

    target: str | Path
    programs: tuple[str, ...] = ()
    calls: tuple[str, ...] | None = None
    live: bool = False
    flavour: str | None = None
    design: str = "per-function"
    config: str = "voluntary"
    sleepable: bool = False
    func_ip: bool = False
    session_cookie: bool = False
    cookies: Mapping[str, int] = field(default_factory=dict)
    kernel_btf: Path | None = None
    names: tuple[str, ...] | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
    targets: Mapping[str, str] = field(default_factory=dict)
    parallel: bool = True
    testmod: bool = True

    @property
    def is_object(self) -> bool:
        """Whether the target is a compiled object."""
        return isinstance(self.target, Path) or self.target.endswith(".o")


@dataclass(frozen=True, slots=True)
class ReadyCall:
    """A call whose arguments stand in guest memory. ``stack`` are words, ``text`` is what was asked for."""

    text: str
    function: str
    address: int
    registers: tuple[int, ...]
    stack: tuple[int, ...]
    cpu: int
    model: FuncModel


class Threads(Protocol):
    """What a debugger is asked for here."""

    def call(
        self, function: str | int, *args: int, stack_args: Sequence[int] = (), cpu: int = 0, name: str = ""
    ) -> object:
        """A thread that calls a function."""
        ...

    def operation(self, name: str, do: Callable[[], object]) -> object:
        """A thread that is an operation of process context."""
        ...


@dataclass(slots=True)
class ReadyWorkload:
    """A kernel with everything in place; nothing has been called yet."""

    lab: Lab
    title: str
    """Target, release and design."""
    calls: tuple[ReadyCall, ...] = ()
    operations: tuple[tuple[str, Callable[[], object]], ...] = ()
    """What attaches, by name, where that is to be stepped as well."""
    links: list[Link] = field(default_factory=list)
    """What was attached, in order."""
    loaded: LoadedObject | None = None
    """The object, where the target is one."""

    def begin(self, debugger: Threads) -> None:
        """Give a debugger its threads: the calls first, then the operations."""
        for call in self.calls:
            debugger.call(call.address, *call.registers, stack_args=call.stack, cpu=call.cpu, name=call.text)
        for name, do in self.operations:
            debugger.operation(name, do)

    def attach(self) -> None:
        """Do the operations here and now."""
        for _, do in self.operations:
            do()

    def attached(self) -> Iterator[str]:
        """Each program that is attached, its attach type and where it is."""
        for link in self.links:
            first, count = link.functions[0], len(link.functions)
            where = first if count == 1 else f"{count} functions, {first} first"
            yield f"{link.program.name} ({link.program.attach_type}) on {where}"

    def place(self, call: CallText, cpu: int = 0) -> ReadyCall:
        """Put a call's arguments into guest memory.

        TrampolineError where the function takes other arguments; what ``Lab.target`` raises; KernelError -ENOMEM.
        """
        target = self.lab.target(call.function)
        placed = call.place(target.model, self.lab.kernel)
        return ReadyCall(
            call.text, call.function, target.address, placed.registers, placed.stack, cpu, target.model
        )

    def call(self, call: ReadyCall) -> Call:
        """Make a call. Where it faults, TrampolineError with the source line of the program that is to blame."""
        try:
            return self.lab.call(
                call.address,
                *call.registers,
                stack_args=call.stack,
                cpu=call.cpu,
                max_instructions=MAX_INSTRUCTIONS,
            )
        except GuestFault as fault:
            line = self.lab.installer.source_of(fault)
            where = f"{line}: {line.text.strip()}: " if line is not None else ""
            raise TrampolineError(f"{call.text}: {where}{fault}") from fault


@contextmanager
def open_workload(workload: Workload) -> Iterator[ReadyWorkload]:
    """Boot, load, and attach unless the workload is ``live``. The kernel is there until the block is left.

    TrampolineError for options that contradict each other, and for a call that can't be read or made; whatever loading
    and attaching raise.
    """
    _check(workload)
    wanted = [_split(text) for text in workload.calls or ()]
    alone = range(len(wanted)) if workload.parallel else [0] * len(wanted)
    cpus = [own if cpu is None else cpu for own, (_, cpu) in zip(alone, wanted, strict=True)]
    if max(cpus, default=0) >= MAX_CPUS:
        raise TrampolineError(f"{MAX_CPUS} CPUs can be had, from 0: no {max(cpus)}; 'f(1)@0' names the CPU of a call")
    name, functions, obj = str(workload.target), tuple[AssemblyFunctions, ...](), None
    if workload.is_object:
        from trampoline.bpf.objects.bpf_object import BpfObject  # only here: its ELF library is slow to load

        obj = BpfObject.open(Path(name))
    elif "(" in name:
        prototype, name = name, parse_model(name).name
        functions = (AssemblyFunctions((FunctionText(name, RETURN_0, prototype),)),)
    btf = None if workload.kernel_btf is None else Btf.read(workload.kernel_btf)
    release = workload.flavour or ("6.12" if obj is None else "7.2")
    vcpus = 1 + max(cpus, default=0)
    with ExitStack() as stack:
        lab = stack.enter_context(
            Lab(release, workload.config, vcpus=vcpus, functions=functions, btf=btf, design=workload.design)
        )
        if workload.testmod:
            lab.load_testmod()
        ready = ReadyWorkload(lab, f"{Path(name).name if obj else name}, kernel {release}, design {workload.design}")
        if obj is None:
            ready.operations = tuple(_programs(ready, workload, name))
        else:
            loaded = ready.loaded = lab.open(obj, names=workload.names, data=workload.data, targets=workload.targets)
            ready.operations = tuple(_of_object(ready, workload, loaded))
            name = next(filter(None, map(loaded.function, loaded.programs)), "") if workload.calls is None else ""
        if workload.calls is None:
            wanted, cpus = [(default_call(lab, name), None)], [0]
        ready.calls = tuple(ready.place(call, cpu) for (call, _), cpu in zip(wanted, cpus, strict=True))
        if not workload.live:
            ready.attach()
            ready.operations = ()
        yield ready


def default_call(lab: Lab, function: str) -> CallText:
    """A call of a function with 1, 2, ... as its arguments: pointers to them, where it takes pointers."""
    if not function:
        raise TrampolineError("no function to call: name one by --call 'f(1)'")
    args = []
    words = count(1)
    for arg in lab.target(function).model.args:
        if arg.type.endswith("*"):
            args.append(f"&{next(words)}")
        elif arg.is_struct:
            args.append("{" + ", ".join(str(next(words)) for _ in range(arg.slots)) + "}")
        else:
            args.append(str(next(words)))
    return CallText.parse(f"{function}({', '.join(args)})")


_Operation = tuple[str, Callable[[], object]]
"""What it is called, and what attaches a program."""


def _check(options: Workload) -> None:
    if not options.is_object:
        if options.names:
            raise TrampolineError("--program chooses programs of an object; the target is a function")
        if named := [program for program in options.cookies if program]:
            raise TrampolineError(f"no program {named[0]}: the cookie of a function's links is --cookie N")
        return
    for given, flag in (
        (options.programs, f"--{'/--'.join(dict.fromkeys(options.programs))}".replace("_", "-")),
        (options.sleepable, "--sleepable"),
        (options.func_ip, "--func-ip"),
        (options.session_cookie, "--session-cookie"),
    ):
        if given:
            raise TrampolineError(f"{flag} is for functions; an object's programs say it themselves")


def _split(text: str) -> tuple[CallText, int | None]:
    """A call, and the CPU after its @."""
    match = _ON_CPU.fullmatch(text)
    return (CallText.parse(text), None) if match is None else (CallText.parse(match["call"]), int(match["cpu"]))


def _programs(ready: ReadyWorkload, options: Workload, name: str) -> Iterator[_Operation]:
    lab, multi = ready.lab, design_info(options.design).links == "multi"
    cookie = options.cookies.get("", 0)
    for number, attach in enumerate(options.programs or ("fentry",)):
        prog = lab.prog(
            f"{attach}_multi" if multi else attach,
            RETURN_0,
            name=f"{attach}{number}",
            sleepable=options.sleepable,
            uses=Uses(func_ip=options.func_ip, session_cookie=options.session_cookie),
        )
        do: Callable[[], Link]
        if multi:
            do = partial(lab.attach_multi, prog, [name], cookies=[cookie])
        else:
            do = partial(lab.attach, prog, name, cookie=cookie)
        yield f"attach {prog.name}", partial(_noted, ready, do)


def _noted(ready: ReadyWorkload, do: Callable[[], Link]) -> None:
    ready.links.append(do())


def _of_object(ready: ReadyWorkload, options: Workload, loaded: LoadedObject) -> Iterator[_Operation]:
    if unknown := sorted(set(options.cookies) - set(loaded.programs) - {""}):
        raise TrampolineError(f"no program {unknown[0]}; there are {', '.join(loaded.programs)}")
    for name in loaded.programs:
        cookie = options.cookies.get(name, options.cookies.get("", 0))
        yield f"attach {name}", partial(_noted, ready, partial(loaded.attach, name, cookie=cookie))
