"""The world that a scenario's schedules share: one kernel, reset to one state before each of them."""

from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

from emu.kernel.kernel import Kernel
from emu.kernel.process_context import PointKind
from emu.kernel.structs import PERCPU, task_struct
from emu.kernel.text.entry import SITE_SIZE
from emu.machine.task import Task
from emu.machine.vcpu import Vcpu
from emu.schedule.actor import Actor
from emu.schedule.ownership import ScheduledMemory
from emu.schedule.task_actor import GuestActor
from emu.schedule.violation import Violation
from emu.schedule.visible import VisibleInstruction, VisibleInstructions
from emu.threads.kernel_threads import KernelThreads

SHARED_PERCPU = (PERCPU.offset("preempt_count"),)
"""Per-CPU words at constant addresses that decide whether a CPU may be preempted: RCU read sections begin there."""
_STACK = 16 << 10
_TO_ALL = frozenset({PointKind.GRACE_PERIOD})
_TO_CPUS, _TO_OPERATIONS = frozenset({PointKind.TEXT_WRITE, PointKind.IPI}), frozenset({PointKind.UNLOCK})
_ENABLING = {
    (runs, waits): _TO_ALL | (_TO_CPUS if runs else frozenset()) | (_TO_OPERATIONS if waits else frozenset())
    for runs in (False, True)
    for waits in (False, True)
}
"""By whether tasks are on CPUs, and whether other operations or grace periods exist."""
_LOOKED_AT = frozenset({task_struct.offset("trc_reader_nesting")})


class Invariant(Protocol):
    """A condition that must hold. Each method raises Violation if it does not."""

    def begin(self, world: "World") -> None:
        """Called when a schedule begins."""

    def after_step(self, world: "World", actor: Actor) -> None:
        """Called after each step of an actor."""

    def at_rest(self, world: "World") -> None:
        """Called when all actors are done and all grace periods are over."""


class World:
    """One kernel whose vCPUs and operations are scheduled.

    ``roots``: Python objects besides the kernel that operations change. ``code``: at most two ranges of guest addresses
    of code, (start, size in bytes). No operation may be under way.
    """

    IS_CACHE = True  # a checkpoint leaves it alone: restored by ``World.reset``

    def __init__(
        self,
        kernel: Kernel,
        roots: Iterable[object],
        code: Sequence[tuple[int, int]],
        *,
        shared_percpu: Collection[int] = SHARED_PERCPU,
    ) -> None:
        self.kernel = kernel
        self._roots = list(roots)
        self.visible = VisibleInstructions(kernel.machine, code, shared_percpu=shared_percpu)
        self.memory = ScheduledMemory(kernel.process)
        self.actors: list[Actor] = []
        self.invariants: list[Invariant] = []
        self.columns: tuple[str, ...] = ()
        """Letter and name of each actor of the last schedule."""
        self.step = 0
        """Steps made in this schedule."""
        self.private: list[tuple[int, int]] = []
        """Ranges of guest memory that schedules ignore, (start, end): no two actors use the same part."""
        self.learn: dict[tuple[int, str], bool] | None = None
        """If set: executed visible instructions, and whether they touched more than private memory."""
        self._under_change: dict[int, bytes] = {}
        self._suspects: list[tuple[int, bytes, int, str]] = []
        for function in list(kernel.functions.values()):
            self.visible.add(function.address, bytes(function.image.code))

    def open(self) -> None:
        """Make the current state the start of every schedule."""
        kernel = self.kernel
        kernel.rcu.automatic = False
        self.visible.install()
        kernel.machine.after_code = self._code_changed
        for address, name in kernel.execmem.images.items():
            self._add_image(address, name)
        machine = kernel.machine
        kernel.process.memory = self.memory
        machine.before_store = self.memory.before_store
        self.threads = KernelThreads(kernel)
        kernel.events.clear()
        self.visible.hold()
        self._start = kernel.checkpoint(self._roots)

    def close(self) -> None:
        """Let the kernel run without schedules again."""
        machine = self.kernel.machine
        self.threads.close()
        machine.before_store = None
        self.kernel.process.memory = None
        self.visible.remove()
        self.kernel.rcu.automatic = True

    def reset(self) -> None:
        """Return to the state of ``open``; operations under way are abandoned."""
        machine = self.kernel.machine
        machine.before_store, self.kernel.process.memory = None, None
        for actor in self.actors:
            actor.end()
        self.actors = []
        for vcpu in machine.vcpus:
            if vcpu.task is not vcpu.idle:
                vcpu.yield_task()
        self.kernel.restore(self._start)
        self.visible.reset()
        self.kernel.process.memory, machine.before_store = self.memory, self.memory.before_store
        self.memory.begin()
        self.threads.trapped.clear()
        self._under_change.clear()
        self._suspects.clear()
        self.step = 0

    def begin(self, actors: Sequence[Actor], invariants: Sequence[Invariant]) -> None:
        """Start a schedule of these actors."""
        self.actors, self.invariants = list(actors), list(invariants)
        self.columns = tuple(f"{actor.letter}: {actor.name}" for actor in actors)
        for invariant in invariants:
            invariant.begin(self)

    # Questions of actors --------------------------------------------------------------------------------------------

    @property
    def watches(self) -> bool:
        """True if every visible instruction must be checked: memory was freed, or text is being patched."""
        return bool(self._under_change) or self.memory.has_freed or self.learn is not None

    def enabling_points(self, letter: str) -> frozenset[PointKind]:
        """Points of an actor's operation that may change the actions of others in their current positions."""
        runs = waits = False
        for other in self.actors:
            if other.letter == letter or other.finished:
                continue
            if isinstance(other, GuestActor):
                runs |= other.vcpu is not None
            else:
                waits = True
        return _ENABLING[runs, waits]

    def trap(self, vcpu: Vcpu) -> None:
        """Run the int3 entry on a vCPU. Violation if no patch owns the int3."""
        if not self.threads.enter_int3(vcpu):
            raise Violation("unhandled int3", f"at {self.describe(vcpu.regs.rip - 1)} on cpu {vcpu.index}")

    def is_private(self, task: Task, address: int) -> bool:
        """True for memory of a single task: its stack, and its task_struct except for what grace periods read."""
        if 0 < task.stack_top - address <= _STACK:
            return True
        if 0 <= address - task.address < task_struct.size:
            return address - task.address not in _LOOKED_AT
        return any(start <= address < end for start, end in self.private)

    def describe(self, address: int) -> str:
        """Text for an address of code."""
        return self.kernel.machine.describe(address) or f"{address:#x}"

    def describe_data(self, address: int) -> str:
        """Text for an address of data; empty if it is not known."""
        kernel = self.kernel
        for slab in (kernel.slab, kernel.vmalloc):
            name = slab.name_at(address)
            if name is not None:
                return name
        freed = self.memory.freed_at(address)
        if freed is not None:
            return f"freed {freed}"
        return kernel.machine.regions_at(address) or ""

    # Violations -----------------------------------------------------------------------------------------------------

    def before_instruction(self, actor: GuestActor, vcpu: Vcpu, rip: int) -> None:
        """Check a visible instruction before it is executed. Violation if it touches freed memory."""
        instruction = self.visible.instructions.get(rip)
        if instruction is None:
            return
        if self.learn is not None:
            self._learn(self.learn, actor, vcpu, rip, instruction)
        if instruction.accesses and self.memory.has_freed:
            registers, gs_base = vcpu.regs.save(), vcpu.gs_base
            for access in instruction.accesses:
                address = access.address(registers, gs_base)
                name = self.memory.freed_at(address)
                if name is not None:
                    verb = "writes to" if access.writes else "reads"
                    where = self.describe(rip)
                    raise Violation("use after free", f"{actor.name} {verb} {address:#x}, freed {name}, at {where}")
        if rip in self._under_change:
            code = vcpu.read_code(rip, SITE_SIZE)
            if code[0] != 0xCC and code != self._under_change[rip]:
                self._suspects.append((rip, code, self.step, actor.name))

    def _learn(
        self,
        learnt: dict[tuple[int, str], bool],
        actor: GuestActor,
        vcpu: Vcpu,
        rip: int,
        instruction: VisibleInstruction,
    ) -> None:
        registers, gs_base = vcpu.regs.save(), vcpu.gs_base
        addresses = [access.address(registers, gs_base) for access in instruction.accesses]
        shared = not addresses or any(not self.is_private(actor.task, address) for address in addresses)
        key = rip, instruction.text
        learnt[key] = learnt.get(key, False) or shared or instruction.is_site

    def text_written(self, what: object) -> None:
        """Check a text write before it is made. Violation if a task's rip is inside the instruction."""
        assert isinstance(what, tuple)
        address, _ = what
        site = self.visible.site_over(address)
        if site not in self._under_change:
            self._under_change[site] = self.kernel.machine.read(site, SITE_SIZE)
            for actor in self.actors:
                if isinstance(actor, GuestActor):
                    vcpu, task = actor.vcpu, actor.task
                    rip = vcpu.regs.rip if vcpu is not None else task.register("rip")
                    if task.in_kernel and site < rip < site + SITE_SIZE:
                        raise Violation("patched under a task", f"{actor.name} is within the 5 bytes at {site:#x}")

    def is_torn(self, actor: GuestActor) -> bool:
        """True if the last visible instruction of an actor that just died was under change, and not the old one."""
        return bool(self._suspects) and self._suspects[-1][2:] == (self.step, actor.name)

    def text_stands(self) -> None:
        """Check executed code after the end of a patch. Violation if it was neither the old nor the new instruction."""
        if not self._under_change or self.kernel.text_poke.text_mutex.held:
            return
        for site, code, step, name in self._suspects:
            if code != self.kernel.machine.read(site, SITE_SIZE):
                where = f"at {self.describe(site)} in step {step}"
                raise Violation("torn instruction", f"{name} executed {code.hex(' ')} {where}")
        self._under_change.clear()
        self._suspects.clear()

    def _code_changed(self, start: int, end: int) -> None:
        """Callback of ``AddressSpace.after_code``."""
        if self.memory.footprint is not None and end - start > SITE_SIZE:
            self.memory.footprint.code(start, end, writes=True)
        self.visible.code_changed(start, end)

    def _add_image(self, address: int, name: str) -> None:
        block = self.kernel.execmem.size_of(address)
        self.visible.add(address, self.kernel.machine.read(address, block))
