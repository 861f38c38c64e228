"""File tests: a text file whose head says what is attached to a function, and below it the listing and the count.

The head, a line a word with its value, ends with the first empty line::

    release 6.12
    config voluntary
    design per-function
    function int sum(int a, long b)
    attach fentry
    attach fexit sleepable func-ip cookie=5
    call sum(3, 4)

``release`` and ``call`` must be there, and ``attach`` once at least. ``function``: a prototype; without it the call is
of one of the kernel's own functions. ``attach``: a kind of program, then its flags: ``sleepable``, ``func-ip``,
``session-cookie``, ``cookie=N``. A kind that ends in ``_multi`` comes by a multi link. ``boot``: ``return-thunk``,
``call-depth``. ``metadata``: of a design that has a choice. Lines with ``#`` in front are comments.
"""

from dataclasses import dataclass, field
from pathlib import Path

from emu.kernel.structs import PERCPU
from emu.kernel.text.functions import AssemblyFunctions, FunctionText
from trampoline.bpf.boot import Boot
from trampoline.bpf.btf.c_declaration import parse_model
from trampoline.bpf.prog import Uses
from trampoline.lab import Lab
from trampoline.lab.call_text import CallText
from trampoline.tools.bench.bench import executed_of
from trampoline.tools.icount.capture import PHASES
from trampoline.tools.show.trampoline import shown

_BODY = "lea rax, [rdi + rdi]\nret"
_PROGRAM = "xor eax, eax\nret"
_ONCE = ("release", "config", "design", "metadata", "function", "call")
_FLAGS = ("sleepable", "func-ip", "session-cookie")
_BOOT = ("return-thunk", "call-depth")


class FileTestError(Exception):
    """A head that can't be read, with its file and line."""

    def __init__(self, path: Path, line: int, reason: str) -> None:
        super().__init__(f"{path}:{line}: {reason}")


@dataclass(frozen=True, slots=True)
class Attached:
    """One program: its kind and its flags."""

    kind: str
    flags: frozenset[str]
    cookie: int


@dataclass(slots=True)
class FileTest:
    """A file test as it was read."""

    head: str
    """As it stands in the file, with the empty line."""
    expected: str
    values: dict[str, str] = field(default_factory=dict)
    programs: list[Attached] = field(default_factory=list)
    boot: frozenset[str] = frozenset()

    def outcome(self) -> str:
        """The listing, and what a call takes, on a kernel that is booted for it."""
        values, prototype = self.values, self.values.get("function")
        call = CallText.parse(values["call"])
        own = () if prototype is None else (AssemblyFunctions((FunctionText(call.function, _BODY, prototype),)),)
        with Lab(
            values["release"],
            values.get("config", "voluntary"),
            design=values.get("design", "per-function"),
            metadata=values.get("metadata"),
            functions=own,
        ) as lab:
            if self.boot:
                thunk = lab.kernel.kallsyms.address("its_return_thunk") if "return-thunk" in self.boot else None
                depth = PERCPU.offset("call_depth") if "call-depth" in self.boot else None
                lab.trampolines.boot = Boot(thunk, depth)
            for number, one in enumerate(self.programs):
                uses = Uses(func_ip="func-ip" in one.flags, session_cookie="session-cookie" in one.flags)
                sleepable = "sleepable" in one.flags
                prog = lab.prog(one.kind, _PROGRAM, name=f"{one.kind}{number}", sleepable=sleepable, uses=uses)
                if one.kind.endswith("_multi"):
                    lab.attach_multi(prog, [call.function], cookies=[one.cookie])
                else:
                    lab.attach(prog, call.function, cookie=one.cookie)
            listing = shown(lab, call.function).text().rstrip()
            placed = call.place(lab.target(call.function).model, lab.kernel)
            done = lab.call(call.function, *placed.registers, stack_args=placed.stack)
            assert done.counts is not None
            phases: dict[str, int] = {}
            for _, times, phase in executed_of(lab, done.counts.by_address, call.function):
                phases[phase] = phases.get(phase, 0) + times
            each = ", ".join(f"{phase} {phases[phase]}" for phase in PHASES if phase in phases)
            unbalanced = done.counts.unbalanced_returns
        return f"{listing}\n\ncount: {sum(phases.values())} instructions, unbalanced returns {unbalanced}: {each}\n"


def parse(path: Path) -> FileTest:
    """Read a file test. FileTestError for a head that says nothing that can be tried."""
    text = path.read_text()
    head, _, expected = text.partition("\n\n")
    found = FileTest(f"{head}\n\n", expected)
    number = 0
    for number, line in enumerate(head.splitlines(), 1):
        if line.startswith("#"):
            continue
        word, _, value = line.partition(" ")
        if not value.strip():
            raise FileTestError(path, number, f"{line!r} is no word with its value")
        if word in _ONCE:
            if word in found.values:
                raise FileTestError(path, number, f"{word!r} stands there twice")
            found.values[word] = value
        elif word == "attach":
            found.programs.append(_attached(path, number, value.split()))
        elif word == "boot":
            if unknown := sorted(set(value.split()) - set(_BOOT)):
                raise FileTestError(path, number, f"no boot option {unknown[0]!r}; there are {', '.join(_BOOT)}")
            found.boot = frozenset(value.split())
        else:
            raise FileTestError(path, number, f"no word {word!r}; there are {', '.join((*_ONCE, 'attach', 'boot'))}")
    for word in ("release", "call"):
        if word not in found.values:
            raise FileTestError(path, number, f"the head says no {word!r}")
    if not found.programs:
        raise FileTestError(path, number, "the head attaches nothing")
    _check_call(path, found)
    return found


def _attached(path: Path, number: int, words: list[str]) -> Attached:
    kind, *rest = words
    cookie, flags = 0, set()
    for word in rest:
        name, _, value = word.partition("=")
        if name == "cookie":
            try:
                cookie = int(value, 0)
            except ValueError:
                raise FileTestError(path, number, f"{word!r}: {value!r} is no number") from None
        elif word in _FLAGS:
            flags.add(word)
        else:
            raise FileTestError(path, number, f"no flag {word!r}; there are {', '.join(_FLAGS)}, cookie=N")
    return Attached(kind, frozenset(flags), cookie)


def _check_call(path: Path, found: FileTest) -> None:
    lines = found.head.splitlines()

    def line(word: str) -> int:
        return next(number for number, line in enumerate(lines, 1) if line.startswith(f"{word} "))

    try:
        call = CallText.parse(found.values["call"])
    except Exception as error:
        raise FileTestError(path, line("call"), str(error)) from error
    if "function" not in found.values:
        return
    try:
        name = parse_model(found.values["function"]).name
    except Exception as error:
        raise FileTestError(path, line("function"), str(error)) from error
    if name != call.function:
        raise FileTestError(path, line("call"), f"calls {call.function}, the function is {name}")
