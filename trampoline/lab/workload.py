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
"""Code of the programs of a function or prototype, and of the function made from a prototype."""
MAX_CPUS = 8
MAX_INSTRUCTIONS = 50_000_000
"""Limit of one call, in instructions; a longer call is taken for an endless loop."""
_ON_CPU = re.compile(r"(?P<call>.*\))\s*@\s*(?P<cpu>\d+)\s*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Workload:
    """A function, a C prototype or an object with programs on it, and calls, as on the command line of ``tramp step``.

    ``target``: text (``*.o`` is an object), or the path of an object. ``programs``: attach types for a function or
    prototype; empty: one fentry. ``calls``: ``f(1, 2)``, or ``f(1, 2)@1`` on CPU 1; None: one call of the target (for
    an object: of the first function that it has programs on). ``parallel``: each call without a CPU has its own; else
    it runs on CPU 0. ``live``: programs are attached by operations. ``cookies``: by program, "" for all. For an object:
    ``names`` of the programs to load, None for all; ``data``, initial values of global variables by name; ``targets``,
    functions by program instead of those of the sections. ``testmod``: load bpf_testmod.
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
        """True if the target is a compiled object."""
        return isinstance(self.target, Path) or self.target.endswith(".o")


@dataclass(frozen=True, slots=True)
class ReadyCall:
    """A call whose arguments are in guest memory. ``stack`` are 8-byte words, ``text`` is the call as written."""

    text: str
    function: str
    address: int
    registers: tuple[int, ...]
    stack: tuple[int, ...]
    cpu: int
    model: FuncModel


class Threads(Protocol):
    """Part of a debugger that a workload needs."""

    def call(
        self, function: str | int, *args: int, stack_args: Sequence[int] = (), cpu: int = 0, name: str = ""
    ) -> object:
        """Starts a thread that calls a function."""
        ...

    def operation(self, name: str, do: Callable[[], object]) -> object:
        """Starts a thread that runs an operation of process context."""
        ...


@dataclass(slots=True)
class ReadyWorkload:
    """A kernel ready to run; nothing has been called yet."""

    lab: Lab
    title: str
    """Target, release and design."""
    calls: tuple[ReadyCall, ...] = ()
    operations: tuple[tuple[str, Callable[[], object]], ...] = ()
    """Attach operations by name, if they are to be stepped too."""
    links: list[Link] = field(default_factory=list)
    """Attached links, in order."""
    loaded: LoadedObject | None = None
    """The object, if the target is one."""

    def begin(self, debugger: Threads) -> None:
        """Starts a debugger's threads: the calls first, then the operations."""
        for call in self.calls:
            debugger.call(call.address, *call.registers, stack_args=call.stack, cpu=call.cpu, name=call.text)
        for name, do in self.operations:
            debugger.operation(name, do)

    def attach(self) -> None:
        """Runs the attach operations."""
        for _, do in self.operations:
            do()

    def attached(self) -> Iterator[str]:
        """Description of each attached program: name, attach type and functions."""
        for link in self.links:
            first, count = link.functions[0], len(link.functions)
            where = first if count == 1 else f"{count} functions, {first} first"
            yield f"{link.program.name} ({link.program.attach_type}) on {where}"

    def place(self, call: CallText, cpu: int = 0) -> ReadyCall:
        """Places a call's arguments in guest memory.

        TrampolineError if the function takes other arguments; raises as ``Lab.target``; KernelError -ENOMEM.
        """
        target = self.lab.target(call.function)
        placed = call.place(target.model, self.lab.kernel)
        return ReadyCall(
            call.text, call.function, target.address, placed.registers, placed.stack, cpu, target.model
        )

    def call(self, call: ReadyCall) -> Call:
        """Makes a call. TrampolineError for a fault, with the program's source line if it is known."""
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
    """Boots, loads, and attaches unless the workload is ``live``. The kernel is closed at the end of the block.

    TrampolineError for contradicting options and for a call that can't be parsed or placed; raises as loading and
    attaching.
    """
    _check(workload)
    wanted = [_split(text) for text in workload.calls or ()]
    alone = range(len(wanted)) if workload.parallel else [0] * len(wanted)
    cpus = [own if cpu is None else cpu for own, (_, cpu) in zip(alone, wanted, strict=True)]
    if max(cpus, default=0) >= MAX_CPUS:
        raise TrampolineError(f"no CPU {max(cpus)} in 0 to {MAX_CPUS - 1}; 'f(1)@0' names the CPU of a call")
    name, functions, obj = str(workload.target), tuple[AssemblyFunctions, ...](), None
    if workload.is_object:
        from trampoline.bpf.objects.bpf_object import BpfObject  # late: its ELF library is slow to load

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
    """Call of a function with 1, 2, ... as arguments, or pointers to them for pointer arguments. TrampolineError for no
    function.
    """
    if not function:
        raise TrampolineError("no function to call; pass --call 'f(1)'")
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
"""Name of an operation, and the callable that attaches a program."""


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
            raise TrampolineError(f"{flag} is for functions; an object's programs declare it")


def _split(text: str) -> tuple[CallText, int | None]:
    """Parses a call and the CPU after its @."""
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
