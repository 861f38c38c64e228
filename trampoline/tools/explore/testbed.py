"""Testbed of scenarios: a kernel with functions to call, and programs that record what they saw in caller memory."""

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
"""Largest number of programs in a scenario."""
NOTES = 160
"""Bytes of the record of one call: run counts of the original and its replacement, then for each program its run
count, the first argument and the cookie that it saw.
"""
_ORIGINAL, _REPLACEMENT, _PROGRAMS, _SEEN, _COOKIES = 0, 4, 8, 64, 112
_ROOM = 4096
"""Bytes for the records of all calls."""
ARGUMENT = 41
"""First argument of every call; functions return it plus one."""

_BODY = "inc dword ptr [rsi + {slot}] ; noted in the caller's memory\nlea eax, [rdi + 1]\nret"
_SLEEPS = (
    "inc dword ptr [rsi + {slot}] ; noted in the caller's memory\npush rbx\nmov ebx, edi\n"
    "call schedule ; until the task is woken\nlea eax, [rbx + 1]\npop rbx\nret"
)
_PROTOTYPE = "int {name}(int a, u32 *notes)"
MANY = 20
"""Functions ``explored_1``, ``explored_2`` and so on."""


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
    """The record of one call."""

    value: int
    original: int
    replacement: int
    programs: tuple[int, ...]
    seen: tuple[int, ...]
    """First argument, as each program saw it."""
    cookies: tuple[int, ...]
    """Cookie that each program found."""


class Stage:
    """A kernel of one design, given by name or as its factory."""

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
        """Load a program that counts its runs, and records the first argument and its cookie, in memory that the second
        argument points to.

        ``sleeps``: it then sleeps until the task is woken, twice, so that a grace period that starts meanwhile sees it
        both asleep and awake.
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
        """Attach a program to functions with a multi link."""
        return self.lab.attach_multi(prog, functions, cookies=cookies)

    def livepatch(self, function: str) -> LivePatch:
        """A livepatch of a function, not enabled."""
        patch = LivePatch(self.lab.kernel, function, "explored_replaced")
        self.patches.append(patch)
        return patch

    def notes(self) -> int:
        """Guest address of the record for one more call. Raises KernelError (EINVAL) if no room is left."""
        self._used += 1
        if self._used * NOTES > _ROOM:
            raise KernelError(EINVAL, "no room for the notes of more calls")
        return self._notes + (self._used - 1) * NOTES

    def read_notes(self, address: int, value: int) -> Notes:
        """The record of a call. ``value``: what the call returned."""
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
        """A task for the calls of a scenario."""
        return self.lab.kernel.task(name, "explored")

    def world(self, roots: Sequence[object]) -> World:
        """The world in which schedules of this stage run; nothing may be loaded afterwards."""
        layout = self.lab.kernel.layout
        code = ((layout.text, TEXT_SIZE), (layout.modules, EXEC_SIZE))
        world = World(self.lab.kernel, [self.lab, *self.programs, *self.patches, *roots], code)
        world.private.append((self._notes, self._notes + _ROOM))
        return world

    def close(self) -> None:
        """Free the machine."""
        self.lab.close()
