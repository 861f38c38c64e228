"""A kernel with functions to call and programs that note in the caller's memory what they saw."""

from collections.abc import Sequence
from dataclasses import dataclass
from errno import EINVAL

from emu.kernel.ftrace.livepatch import LivePatch
from emu.kernel.kernel import EXEC_SIZE, TEXT_SIZE
from emu.kernel.text.functions import AssemblyFunctions, FunctionText
from emu.machine.task import Task
from emu.schedule.simulation import World
from trampoline.bpf.errors import KernelError
from trampoline.bpf.prog import BpfProg, Uses
from trampoline.designs import DesignChoice
from trampoline.lab import Lab
from trampoline.lab.links.tracing_multi import TracingMultiLink

PROGRAMS = 6
"""Programs of a scenario at most."""
NOTES = 160
"""Bytes in which one call is noted: how often the original and its replacement ran, then each program, and the first
argument and the cookie as each saw them.
"""
_ORIGINAL, _REPLACEMENT, _PROGRAMS, _SEEN, _COOKIES = 0, 4, 8, 64, 112
_ROOM = 4096
"""Bytes for the notes of all calls."""
ARGUMENT = 41
"""The first argument of every call; functions return one more."""

_BODY = "inc dword ptr [rsi + {slot}] ; noted in the caller's memory\nlea eax, [rdi + 1]\nret"
_SLEEPS = (
    "inc dword ptr [rsi + {slot}] ; noted in the caller's memory\npush rbx\nmov ebx, edi\n"
    "call schedule ; until somebody wakes the task\nlea eax, [rbx + 1]\npop rbx\nret"
)
_PROTOTYPE = "int {name}(int a, u32 *notes)"
MANY = 20
"""Functions named ``explored_1`` and so on."""


def _function(name: str, body: str, slot: int = _ORIGINAL) -> FunctionText:
    return FunctionText(name, body.format(slot=slot), _PROTOTYPE.format(name=name))


FUNCTIONS = (
    _function("explored", _BODY),
    _function("explored_sleeps", _SLEEPS),
    _function("explored_replaced", _BODY, _REPLACEMENT),
    *(_function(f"explored_{number}", _BODY) for number in range(1, MANY + 1)),
)
MODULE = "explored_mod"
MODULE_FUNCTIONS = (_function("explored_in_module", _BODY),)


@dataclass(frozen=True, slots=True)
class Notes:
    """What one call left behind."""

    value: int
    original: int
    replacement: int
    programs: tuple[int, ...]
    seen: tuple[int, ...]
    """The first argument as each program saw it."""
    cookies: tuple[int, ...]
    """The cookie that each program found."""


class Stage:
    """A kernel of one design, by name or as its factory. ``vcpus``: two, unless a scenario wants more."""

    def __init__(
        self,
        design: DesignChoice,
        flavour: str = "6.12",
        config: str = "voluntary",
        *,
        vcpus: int = 2,
        metadata: str | None = None,
        counting: str = "off",
    ) -> None:
        self.lab = Lab(
            flavour,
            config,
            design=design,
            metadata=metadata,
            vcpus=vcpus,
            counting=counting,
            functions=(AssemblyFunctions(FUNCTIONS),),
        )
        kernel = self.lab.kernel
        self.design, self.vcpus = design, vcpus
        self._notes = kernel.module_data(_ROOM, 4096)
        self._used = 0
        self.programs: list[BpfProg] = []
        self.patches: list[LivePatch] = []

    def program(self, kind: str, *, sleepable: bool = False, sleeps: bool = False) -> BpfProg:
        """Load a program that counts itself, and notes the first argument and its cookie, in memory that the second
        argument points to.

        ``sleeps``: then it waits until somebody wakes the task, and does so again: grace periods that begin meanwhile
        see it asleep and awake.
        """
        number = len(self.programs)
        schedule = "sub rsp, 8\n    call schedule\n    call schedule\n    add rsp, 8" if sleeps else ""
        text = f"""
    mov rdx, qword ptr [rdi + 8]                   ; notes
    inc dword ptr [rdx + {_PROGRAMS + 4 * number}]
    mov rax, qword ptr [rdi]
    mov qword ptr [rdx + {_SEEN + 8 * number}], rax
    mov rax, qword ptr gs:[percpu.current_task]    ; bpf_get_attach_cookie()
    mov rax, qword ptr [rax + task_struct.bpf_ctx]
    mov rax, qword ptr [rax + bpf_tramp_run_ctx.bpf_cookie]
    mov qword ptr [rdx + {_COOKIES + 8 * number}], rax
    {schedule}
    xor eax, eax
    ret
"""
        prog = self.lab.prog(
            f"{kind}_multi", text, name=f"P{number}", sleepable=sleepable or sleeps, uses=Uses(func_ip=False)
        )
        self.programs.append(prog)
        return prog

    def attach(self, prog: BpfProg, *functions: str, cookies: Sequence[int] | None = None) -> TracingMultiLink:
        """Attach a program to functions, as a multi link."""
        return self.lab.attach_multi(prog, functions, cookies=cookies)

    def livepatch(self, function: str) -> LivePatch:
        """A livepatch of a function, not in force."""
        patch = LivePatch(self.lab.kernel, function, "explored_replaced")
        self.patches.append(patch)
        return patch

    def notes(self) -> int:
        """Guest address of memory for the notes of one more call."""
        self._used += 1
        if self._used * NOTES > _ROOM:
            raise KernelError(EINVAL, "no room for the notes of more calls")
        return self._notes + (self._used - 1) * NOTES

    def read_notes(self, address: int, value: int) -> Notes:
        """What a call left behind."""
        raw = self.lab.kernel.machine.read(address, NOTES)

        def word(offset: int, size: int = 4) -> int:
            return int.from_bytes(raw[offset : offset + size], "little")

        count = len(self.programs)
        return Notes(
            value & 0xFFFFFFFF,
            word(_ORIGINAL),
            word(_REPLACEMENT),
            tuple(word(_PROGRAMS + 4 * number) for number in range(count)),
            tuple(word(_SEEN + 8 * number, 8) for number in range(count)),
            tuple(word(_COOKIES + 8 * number, 8) for number in range(count)),
        )

    def task(self, name: str) -> Task:
        """A task that a scenario lets call functions."""
        return self.lab.kernel.task(name, "explored")

    def world(self, roots: Sequence[object]) -> World:
        """What schedules of this stage run on; nothing may be loaded afterwards."""
        layout = self.lab.kernel.layout
        code = ((layout.text, TEXT_SIZE), (layout.modules, EXEC_SIZE))
        world = World(self.lab.kernel, [self.lab, *self.programs, *self.patches, *roots], code)
        world.private.append((self._notes, self._notes + _ROOM))
        return world

    def close(self) -> None:
        """Give the machine back."""
        self.lab.close()
