"""What is stepped through: a kernel with programs attached, and the calls that run in it.

>>> with open_target(TargetOptions("bpf_fentry_test1", programs=("fexit",), calls=("bpf_fentry_test1(41)",))) as found:
...     call = found.calls[0]
...     found.lab.call(call.address, *call.registers).value
42
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Protocol

from emu.kernel.text.functions import AssemblyFunctions, FunctionText
from trampoline.bpf.btf.btf import Btf
from trampoline.bpf.btf.c_declaration import parse_model
from trampoline.bpf.errors import TrampolineError
from trampoline.bpf.objects.bpf_object import BpfObject
from trampoline.bpf.prog import Uses
from trampoline.designs import design_info
from trampoline.lab.call_text import CallText
from trampoline.lab.lab import Lab
from trampoline.lab.links.link import Link
from trampoline.lab.loaded_object import LoadedObject

PROGRAM = "xor eax, eax\nret"
"""The programs of a function or prototype, as in ``tramp show``."""
BODY = "xor eax, eax\nret"
"""The function that a prototype stands for."""
MAX_CPUS = 8
_ON_CPU = re.compile(r"(?P<call>.*\))\s*@\s*(?P<cpu>\d+)\s*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class TargetOptions:
    """What to look at: a function, a C prototype or an object, as on the command line of ``tramp step``.

    ``programs``: attach types, for a function or prototype; none given is one fentry. ``calls``: ``f(1, 2)``, with
    ``@1`` behind it on that CPU; none given is one of the target (of an object, one of each function that it has
    programs on). ``cookies``: by program, "" for all. ``live``: programs are attached by operations.
    """

    target: str
    programs: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
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

    @property
    def is_object(self) -> bool:
        """Whether the target is a compiled object."""
        return self.target.endswith(".o")


@dataclass(frozen=True, slots=True)
class ReadyCall:
    """A call whose arguments stand in guest memory. ``stack`` are words, ``text`` is what was asked for."""

    text: str
    function: str
    address: int
    registers: tuple[int, ...]
    stack: tuple[int, ...]
    cpu: int


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
class Ready:
    """A kernel with everything in place; nothing has been called yet."""

    lab: Lab
    title: str
    """What is looked at, in a few words."""
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


@contextmanager
def open_target(options: TargetOptions) -> Iterator[Ready]:
    """The kernel that the options ask for, until the block is left.

    TrampolineError for options that contradict each other, and for a call that can't be read or made; whatever loading
    and attaching raise.
    """
    _check(options)
    wanted = [_split(text) for text in options.calls]
    cpus = [number if cpu is None else cpu for number, (_, cpu) in enumerate(wanted)]
    if max(cpus, default=0) >= MAX_CPUS:
        raise TrampolineError(f"{MAX_CPUS} CPUs can be had, from 0: no {max(cpus)}; 'f(1)@0' names the CPU of a call")
    obj = BpfObject.open(Path(options.target)) if options.is_object else None
    btf = None if options.kernel_btf is None else Btf.read(options.kernel_btf)
    name, functions = options.target, tuple[AssemblyFunctions, ...]()
    if obj is None and "(" in name:
        name = parse_model(options.target).name
        functions = (AssemblyFunctions((FunctionText(name, BODY, options.target),)),)
    release = options.flavour or ("6.12" if obj is None else "7.2")
    vcpus = 1 + max(cpus, default=0)
    with Lab(release, options.config, vcpus=vcpus, functions=functions, btf=btf, design=options.design) as lab:
        lab.load_testmod()
        ready = Ready(lab, f"{Path(name).name if obj else name}, kernel {release}, design {options.design}")
        if obj is None:
            attaching = list(_programs(ready, options, name))
        else:
            attaching = list(_of_object(ready, options, lab.open(obj, names=options.names)))
        first = name if obj is None else next((where for where, _, _ in attaching if where), "")
        if not wanted:
            wanted, cpus = [(default_call(lab, first), 0)], [0]
        ready.calls = tuple(_ready(lab, call, cpu) for (call, _), cpu in zip(wanted, cpus, strict=True))
        if options.live:
            ready.operations = tuple((f"attach {program}", do) for _, program, do in attaching)
        else:
            for _, _, do in attaching:
                do()
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


_Attaching = tuple[str, str, Callable[[], object]]
"""A function that can be called, or none; a program; what attaches it."""


def _check(options: TargetOptions) -> None:
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
    """A call, and the CPU behind its @."""
    match = _ON_CPU.fullmatch(text)
    return (CallText.parse(text), None) if match is None else (CallText.parse(match["call"]), int(match["cpu"]))


def _ready(lab: Lab, call: CallText, cpu: int) -> ReadyCall:
    target = lab.target(call.function)
    placed = call.place(target.model, lab.kernel)
    return ReadyCall(call.text, call.function, target.address, placed.registers, placed.stack, cpu)


def _programs(ready: Ready, options: TargetOptions, name: str) -> Iterator[_Attaching]:
    lab, multi = ready.lab, design_info(options.design).links == "multi"
    cookie = options.cookies.get("", 0)
    for number, attach in enumerate(options.programs or ("fentry",)):
        prog = lab.prog(
            f"{attach}_multi" if multi else attach,
            PROGRAM,
            name=f"{attach}{number}",
            sleepable=options.sleepable,
            uses=Uses(func_ip=options.func_ip, session_cookie=options.session_cookie),
        )
        do: Callable[[], Link]
        if multi:
            do = partial(lab.attach_multi, prog, [name], cookies=[cookie])
        else:
            do = partial(lab.attach, prog, name, cookie=cookie)
        yield name, prog.name, partial(_noted, ready, do)


def _noted(ready: Ready, do: Callable[[], Link]) -> None:
    ready.links.append(do())


def _of_object(ready: Ready, options: TargetOptions, loaded: LoadedObject) -> Iterator[_Attaching]:
    if unknown := sorted(set(options.cookies) - set(loaded.programs) - {""}):
        raise TrampolineError(f"no program {unknown[0]}; there are {', '.join(loaded.programs)}")
    ready.loaded = loaded
    for name in loaded.programs:
        cookie = options.cookies.get(name, options.cookies.get("", 0))
        yield loaded.function(name), name, partial(_noted, ready, partial(loaded.attach, name, cookie=cookie))
