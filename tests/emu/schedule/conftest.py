from collections.abc import Callable, Iterator

import pytest

from asm.encodings import call_rel32
from emu.kernel.kernel import EXEC_SIZE, TEXT_SIZE, Kernel
from emu.kernel.text.entry import EntryLayout
from emu.kernel.text.functions import AssemblyFunctions, FunctionText
from emu.schedule.operation_actor import ControlActor, GraceActor
from emu.schedule.run import run_schedule
from emu.schedule.simulation import World
from emu.schedule.task_actor import GuestActor
from emu.threads.thread import GuestCall

FUNCTIONS = (
    FunctionText("traced", "mov eax, 1\nret"),
    FunctionText("patched_in", "add rsp, 8 ; the return address into traced\nmov eax, 2\nret", traceable=False),
    FunctionText("calls", "call traced\nret", traceable=False),
    FunctionText("sleeps", "push rbx\nmov rbx, rdi\ncall schedule\nmov eax, [rbx]\npop rbx\nret", traceable=False),
    FunctionText("reads", "mov rax, [rdi]\nmov rdx, [rax]\nmov eax, edx\nret", traceable=False),
    FunctionText("adds", "mov eax, [rdi]\nadd eax, 1\nmov [rdi], eax\nret", traceable=False),
    FunctionText("clobbers", "mov r12d, 5\nret", traceable=False),
)


class Lab:
    """A kernel and its world. ``run`` runs one schedule of tasks and operations."""

    def __init__(self, vcpus: int, counting: str) -> None:
        self.kernel = Kernel(
            entry=EntryLayout(endbr=False), vcpus=vcpus, counting=counting, functions=(AssemblyFunctions(FUNCTIONS),)
        )
        layout = self.kernel.layout
        self.world = World(self.kernel, [], [(layout.text, TEXT_SIZE), (layout.modules, EXEC_SIZE)])
        self.tasks = []
        self.calls: list[GuestCall] = []
        self.opened = False

    def task(self, function: str, *args: int, times: int = 1, **options) -> None:
        """A task that calls a function so many times; before ``open``."""
        address = self.kernel.kallsyms.address(function)
        task = self.kernel.task(f"task {len(self.tasks)}", function)
        self.tasks.append((task, [(address, args, function)] * times, options))

    def open(self) -> None:
        self.world.open()
        self.opened = True

    def run(self, scheduler, operations=()):
        """One schedule; ``calls`` are those of the tasks then."""
        world = self.world
        world.reset()
        actors, self.calls = [], []
        letters = iter("abcdefgh")
        for task, calls, options in self.tasks:
            mine = [GuestCall(address, args, name) for address, args, name in calls]
            self.calls += mine
            actors.append(GuestActor(world, len(actors), next(letters), task, mine, **options))
        for operation in operations:
            actors.append(ControlActor(world, len(actors), next(letters), operation.__name__, operation))
        actors.append(GraceActor(world, len(actors)))
        world.begin(actors, [])
        return run_schedule(world, scheduler)

    def all(self, scheduler, operations=()):
        """Every schedule that a scheduler makes: outcomes and what the calls gave."""
        found = []
        while scheduler.begin():
            outcome = self.run(scheduler, operations)
            scheduler.end(outcome)
            if not outcome.pruned:
                found.append((outcome, tuple(call.value for call in self.calls)))
        return found

    def patch(self) -> None:
        """Let ``traced`` call ``patched_in``."""
        poke, site = self.kernel.text_poke, self.kernel.function("traced").site
        with poke.text_mutex:
            poke.text_poke_bp(site, call_rel32(site, self.kernel.kallsyms.address("patched_in")))


@pytest.fixture
def lab() -> Iterator[Callable[..., Lab]]:
    made: list[Lab] = []

    def make(vcpus: int = 1, counting: str = "off") -> Lab:
        made.append(Lab(vcpus, counting))
        return made[-1]

    yield make
    for each in made:
        if each.opened:
            each.world.reset()
        each.kernel.close()
