"""The synthetic kernel: text, symbols, per-CPU data, tasks and the services that patch and wait.

Booting is deterministic: equal arguments produce equal guest memory. The callees of trampolines are passed in as
routines and constants.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from errno import ENOENT
from functools import partial
from typing import Any

from asm.encodings import NOPS, jmp_rel32
from emu.events import EventStream
from emu.kernel.checkpoint import Checkpoint
from emu.kernel.config import VOLUNTARY, Config
from emu.kernel.errors import KernelError
from emu.kernel.ftrace.direct import Ftrace
from emu.kernel.mm.execmem import ExecMem
from emu.kernel.mm.slab import PerCpu, Slab
from emu.kernel.module.modules import Module, Modules
from emu.kernel.percpu_ref import PercpuRefs
from emu.kernel.process_context import PointKind, ProcessContext
from emu.kernel.rcu import Rcu, RcuFlavour
from emu.kernel.routines import GUEST_DATA, Routine, kernel_routines
from emu.kernel.structs import (
    PERCPU,
    asm_symbols,
    initialise_percpu,
    initialise_srcu,
    initialise_task,
    srcu_struct,
    task_struct,
)
from emu.kernel.text.entry import EntryLayout
from emu.kernel.text.functions import AssemblyFunctions, FunctionSource, FunctionText, PlacedFunction, padding_bytes
from emu.kernel.text.kallsyms import AssemblySymbols, Kallsyms
from emu.kernel.text.stamped_text import FunctionTable, StampedText, TextSource
from emu.kernel.text.text_poke import TextPoke
from emu.machine.address_map import PAGE_SIZE, AddressMap, round_up
from emu.machine.frame_words import StackNames
from emu.machine.machine import Machine, Prot
from emu.machine.snapshot import Snapshot
from emu.machine.task import Task
from emu.machine.vcpu import Call, Vcpu

TEXT_SIZE = 2 << 20
"""Guest memory for the kernel's text, and for additions after stamped text, which has its own."""
EXEC_SIZE = 16 << 20
"""Address space for modules and images."""
SLAB_SIZE = 4 << 20
VMALLOC_SIZE = 2 << 20
PERCPU_SIZE = 128 << 10
"""Dynamic per-CPU memory of a CPU."""
STACK_CANARY = 0x5BD1E995A3C4F700
"""An arbitrary constant: runs must repeat."""


@dataclass(frozen=True, slots=True)
class KernelState:
    """State of a kernel: the machine's snapshot, and the content of Python objects."""

    snapshot: Snapshot
    python: Checkpoint


class Kernel:
    """One booted kernel on a machine of its own.

    ``entry``: layout of the entry of traceable functions. ``functions``: those of the kernel's text. ``routines`` and
    ``constants``: additional code and names, laid out before them. ``packs``: images share pages. Sizes are in
    bytes: ``exec_size`` of address space for modules and images, the others of guest memory.
    """

    def __init__(
        self,
        *,
        entry: EntryLayout,
        config: Config = VOLUNTARY,
        layout: AddressMap = AddressMap(),  # noqa: B008  # frozen
        vcpus: int = 1,
        packs: bool = True,
        functions: Sequence[FunctionSource | TextSource] = (),
        routines: Mapping[str, Routine] | None = None,
        constants: Mapping[str, int] | None = None,
        counting: str = "auto",
        ram_bytes: int = 32 << 20,
        exec_size: int = EXEC_SIZE,
        slab_size: int = SLAB_SIZE,
        percpu_size: int = PERCPU_SIZE,
        text_size: int = TEXT_SIZE,
    ) -> None:
        self.entry, self.config, self.layout = entry, config, layout
        self.machine = Machine(layout, ram_bytes=ram_bytes, vcpus=vcpus, counting=counting)
        self.events = EventStream()
        self.process = ProcessContext()
        self.kallsyms = Kallsyms()
        self.modules = Modules()
        self.functions = FunctionTable()
        self.symbols = AssemblySymbols(self.kallsyms, {**asm_symbols(), **(constants or {})})
        """All names for assembly text: kernel symbols (the kernel's own before modules'), fields of
        structures."""
        self.on_clock: list[Callable[[int], None]] = []
        """Called with the number of nanoseconds by which virtual time was advanced."""
        self._keys: dict[str, list[tuple[int, int]]] = {}
        self._text_end = layout.text
        self._text_limit = layout.text + text_size
        self._data_end = layout.modules + exec_size
        self._map_data(slab_size, percpu_size)
        machine, process = self.machine, self.process
        self.text_poke = TextPoke(machine, process, self.events)
        self.execmem = ExecMem(machine, process, self.events, layout.modules, exec_size, packs=packs)
        self.rcu = Rcu(machine, process, self.events, self._nesting)
        self.percpu_refs = PercpuRefs(machine, self.slab, self.percpu, self.rcu)
        self.ftrace = Ftrace(
            machine, process, self.kallsyms, self.text_poke, slab=self.slab, execmem=self.execmem, rcu=self.rcu
        )
        machine.symbolize = self.kallsyms.function_name
        self._boot_tasks()
        self._boot_text({**kernel_routines(config), **(routines or {})}, functions)

    # Memory ---------------------------------------------------------------------------------------------------------

    def _map_data(self, slab_size: int, percpu_size: int) -> None:
        machine, layout = self.machine, self.layout
        data = Prot.READ | Prot.WRITE
        machine.map(layout.direct_map, slab_size, data, name="slab")
        self.slab = Slab(machine, self.process, layout.direct_map, slab_size)
        machine.map(layout.vmalloc, VMALLOC_SIZE, data, name="vmalloc")
        self.vmalloc = Slab(machine, self.process, layout.vmalloc, VMALLOC_SIZE)
        areas = []
        stride = PERCPU.size + percpu_size
        for vcpu in machine.vcpus:
            base = layout.percpu + vcpu.index * stride
            machine.map(base, stride, data, name=f"per-CPU area of cpu {vcpu.index}")
            vcpu.gs_base = base
            areas.append(base)
        self.percpu_areas = tuple(areas)
        self.percpu = PerCpu(machine, self.process, self.percpu_areas, PERCPU.size, percpu_size)

    def map_data(self, address: int, size: int) -> None:
        """Make a range readable and writable at an address chosen by the caller; mapped pages stay."""
        for page in range(address & -PAGE_SIZE, address + size, PAGE_SIZE):
            if not self.machine.is_mapped(page):
                self.machine.map(page, PAGE_SIZE, Prot.READ | Prot.WRITE, name="data")

    def module_data(self, size: int, alignment: int) -> int:
        """Allocate ``size`` zeroed bytes of data within reach of modules and kernel text; returns the guest address."""
        address = round_up(self._data_end, alignment)
        self._data_end = address + max(size, 1)
        self.map_data(address, max(size, 1))
        return address

    def _boot_tasks(self) -> None:
        machine = self.machine
        machine.current_offset = PERCPU.offset("current_task")
        for vcpu in machine.vcpus:
            task = vcpu.task
            task.address = self._new_task(task.name or f"swapper/{vcpu.index}", pid=vcpu.index + 1)
            initialise_percpu(
                machine, self.percpu_areas[vcpu.index], vcpu.index, current=task.address, stack_canary=STACK_CANARY
            )

    def _new_task(self, name: str, pid: int) -> int:
        address = self.slab.alloc(task_struct.size, f"task_struct of {name}")
        initialise_task(self.machine, address, pid=pid, comm=name, cpus=len(self.machine.vcpus))
        return address

    def task(self, name: str, function: str | int, *args: int) -> Task:
        """A kernel thread that will call a function; ``Vcpu.run`` runs it."""
        address = function if isinstance(function, int) else self.kallsyms.address(function)
        task_struct_address = self._new_task(name, pid=len(self.machine.tasks) + 1)
        return self.machine.task(name, address, args, struct=task_struct_address)

    def remove_task(self, task: Task) -> None:
        """Remove a kernel thread, its task_struct and its stack. MachineError while a vCPU runs it."""
        self.machine.remove_task(task)
        self.slab.free(task.address)

    def current(self, vcpu: Vcpu) -> int:
        """Guest address of the task_struct of a vCPU's current task."""
        return int(PERCPU.view(self.machine, self.percpu_areas[vcpu.index]).current_task)

    def _nesting(self, task: Task, flavour: RcuFlavour) -> int:
        view = task_struct.view(self.machine, task.address)
        field = "trc_reader_nesting" if flavour is RcuFlavour.RCU_TASKS_TRACE else "rcu_read_lock_nesting"
        return int(getattr(view, field))

    # Text -----------------------------------------------------------------------------------------------------------

    def _boot_text(
        self, routines: Mapping[str, Routine], functions: Sequence[FunctionSource | TextSource]
    ) -> None:
        machine, layout = self.machine, self.layout
        for name, struct in GUEST_DATA.items():
            if struct == "srcu_struct":
                size = srcu_struct.size
                address = self.slab.alloc(size, name)
                initialise_srcu(machine, address)
            else:
                size, address = 8, self.module_data(8, 8)
            self.kallsyms.add(name, address, size)
        machine.map(layout.text, self._text_limit - layout.text, Prot.READ | Prot.EXEC, name="kernel text")
        host = {"percpu_ref_release": self.percpu_refs.released}
        calls = {name: machine.host_call(name, host.get(name, _nothing)) for name, r in routines.items() if r.host_call}
        calls["schedule"] = machine.host_call("schedule", Vcpu.sleep)
        for name, address in calls.items():
            self.kallsyms.add(name, address, 1)
        self.percpu_refs.release_address = calls["percpu_ref_release"]
        self.add_routines(*(routine for routine in routines.values() if not routine.host_call))
        for source in functions:
            if isinstance(source, TextSource):
                self.add_text(source)
            else:
                self._place(source)

    def _place(self, source: FunctionSource) -> list[PlacedFunction]:
        """Lay out functions after the kernel's text and register them."""
        placed = source.place(self._text_end, self.entry, self.symbols)
        for function in placed:
            self._load(function)
            end = function.address + function.size
            if self.layout.text <= function.address and end <= self._text_limit:
                self._text_end = max(self._text_end, end)
        return placed

    def _load(self, function: PlacedFunction) -> None:
        machine, address = self.machine, function.address
        padding = self.entry.padding if function.site is not None else 0
        for page in range((address - padding) & -PAGE_SIZE, address + function.size, PAGE_SIZE):
            if not machine.is_mapped(page):
                machine.map(page, PAGE_SIZE, Prot.READ | Prot.EXEC, name="kernel text")
        if padding:
            machine.load(address - padding, padding_bytes(padding))
        machine.load(address, function.image.code)
        self.adopt(function)

    def adopt(self, function: PlacedFunction) -> None:
        """Register a function in guest memory: its symbol, its listing, its patch site."""
        self.machine.add_image(function.image)
        address = function.address
        self.kallsyms.add(function.name, address, function.size, function.module)
        if function.site is not None:
            self.ftrace.add_site(function.site, function.module)
        key = f"{function.module}:{function.name}" if function.module else function.name
        self.functions[key] = function

    def add_text(self, source: TextSource) -> StampedText:
        """Add thousands of functions to the kernel's text, which grows as needed. OutOfMemory; asm.AsmError for a body
        that can't be assembled; nothing is added then.
        """
        text = source.stamp(self._text_end, self.entry, self.symbols)
        machine, end = self.machine, round_up(text.end, PAGE_SIZE)
        if end > self._text_limit:
            end += TEXT_SIZE
            machine.map(self._text_limit, end - self._text_limit, Prot.READ | Prot.EXEC, name="kernel text")
            self._text_limit = end
        machine.add_text(text)
        machine.load(text.start, text.code)
        self.kallsyms.add_text(text)
        for site in text.sites:
            self.ftrace.add_site(site)
        self.functions.texts.append(text)
        self._text_end = text.end
        return text

    def add_functions(self, *functions: FunctionText) -> list[PlacedFunction]:
        """Add functions to the kernel's text. Raises asm.AsmError for a body that can't be assembled."""
        return self._place(AssemblyFunctions(functions))

    def add_routines(self, *routines: Routine, constants: Mapping[str, int] | None = None) -> list[PlacedFunction]:
        """Add routines to the kernel's text, with the sites of their static keys, which must be off.

        ``constants``: names in their texts other than the kernel's symbols. Raises asm.AsmError.
        """
        guest = tuple(FunctionText(routine.name, routine.text, traceable=False) for routine in routines)
        entries = {routine.name: routine.jump_entries for routine in routines}
        stacks = {routine.name: routine.stack for routine in routines}
        made = self._place(AssemblyFunctions(guest, constants=constants or {}))
        for placed in made:
            for entry in entries[placed.name]:
                sites = self._keys.setdefault(entry.key, [])
                sites.append((placed.image.symbols[entry.site], placed.image.symbols[entry.target]))
            if stacks[placed.name]:
                self.machine.images.name_stack(placed.image.address, partial(StackNames, stacks[placed.name]))
        return made

    def add_symbol_at(self, address: int, name: str) -> None:
        """Make a given address (of a recorded boot) lead to a symbol, by a jmp."""
        self._map_text(address, 5)
        self.machine.load(address, jmp_rel32(address, self.kallsyms.address(name)))

    def _map_text(self, address: int, size: int) -> None:
        for page in range(address & -PAGE_SIZE, address + size, PAGE_SIZE):
            if not self.machine.is_mapped(page):
                self.machine.map(page, PAGE_SIZE, Prot.READ | Prot.EXEC, name="kernel text")

    def is_kernel_text(self, address: int) -> bool:
        """True for the kernel's own text (``is_kernel_text``): a function's, not a module's."""
        symbol = self.kallsyms.at(address)
        return symbol is not None and not symbol.module and symbol.name in self.functions

    def function(self, name: str) -> PlacedFunction:
        """A function by name, ``module:name`` for a module's; the first by address if there are several.
        KernelError (-ENOENT).
        """
        found = self.function_at(self.kallsyms.lookup(name).address)
        if found is None:
            raise KernelError(ENOENT, f"no symbol {name!r} as a function")
        return found

    def function_at(self, address: int) -> PlacedFunction | None:
        """The function that covers an address, or None."""
        found = self.functions.stamped_at(address)
        if found is None and (symbol := self.kallsyms.at(address)) is not None:
            found = self.functions.single.get(f"{symbol.module}:{symbol.name}" if symbol.module else symbol.name)
        return found

    def point_patch(self, address: int) -> None:
        """Pass the point at which a patch can be made to fail, before anything is written."""
        self.process.point(PointKind.PATCH, f"site at {address:#x}")

    # Static keys ----------------------------------------------------------------------------------------------------

    def static_key(self, key: str, *, enabled: bool) -> None:
        """Turn a static key on or off: its nop5s become jumps, or nops again (``static_key_enable``)."""
        with self.text_poke.text_mutex:
            for site, target in sorted(self._keys[key]):
                self.text_poke.batch_add(site, jmp_rel32(site, target) if enabled else NOPS[5])
            self.text_poke.batch_finish()

    # Modules --------------------------------------------------------------------------------------------------------

    def load_module(self, name: str, source: FunctionSource) -> Module:
        """Load a module: its functions get executable memory of their own and can be traced.

        -EEXIST for a name in use, -ENOMEM; then nothing stays allocated.
        """
        self.modules.check_free(name)
        end = max(f.address + f.size for f in source.place(PAGE_SIZE, self.entry, self.symbols))
        size = end - PAGE_SIZE + self.entry.padding
        pages = round_up(size, PAGE_SIZE) + PAGE_SIZE
        address = self.execmem.alloc(pages, f"module {name}")
        start = round_up(address, PAGE_SIZE)
        try:
            placed = source.place(start, self.entry, self.symbols)
        except BaseException:
            self.execmem.free(address)
            raise
        for function in placed:
            self._load(function)
        module = Module(name, placed, address, pages)
        module.undo += [lambda: self._unload(module), lambda: self.ftrace.remove_sites(name)]
        self.modules.add(module)
        return module

    def _unload(self, module: Module) -> None:
        for function in module.functions:
            del self.functions[f"{module.name}:{function.name}"]
            self.kallsyms.remove(self.kallsyms.lookup(f"{module.name}:{function.name}"))
            self.machine.remove_image(function.address)
        self.execmem.free(module.address)

    # Running --------------------------------------------------------------------------------------------------------

    def call(
        self, function: str | int, *args: int, stack_args: Iterable[int] = (), cpu: int = 0, **options: Any
    ) -> Call:
        """Call a function on a vCPU: register arguments first, then those on the stack."""
        address = function if isinstance(function, int) else self.kallsyms.address(function)
        try:
            return self.machine.vcpus[cpu].call(address, *args, stack_args=tuple(stack_args), **options)
        finally:
            self.rcu.settle()

    def advance_clock(self, nanoseconds: int) -> None:
        """Advance virtual time, the value of sched_clock() on every CPU."""
        for area in self.percpu_areas:
            view = PERCPU.view(self.machine, area)
            view.sched_clock += nanoseconds
        for told in self.on_clock:
            told(nanoseconds)

    # States ---------------------------------------------------------------------------------------------------------

    def checkpoint(
        self, roots: Iterable[object] = (), outside: Iterable[object] = (), *, python: Checkpoint | None = None
    ) -> KernelState:
        """The current state, for ``restore``. No operation may be under way: a greenlet can't be saved.

        ``roots``: Python objects besides the kernel that may change; ``outside``: objects to ignore. ``python``: of an
        earlier state, if no Python code has changed anything since. MachineError while a vCPU runs.
        """
        machine = self.machine
        if python is None:
            python = Checkpoint(
                [self, machine.host_calls, machine.on_int3, machine.on_fault, *roots],
                [machine, *machine.vcpus, *machine.tasks, *outside],
            )
        return KernelState(machine.snapshot(), python)

    def restore(self, state: KernelState) -> None:
        """Return to a state of this kernel. MachineError for another one's, and while a vCPU runs."""
        self.machine.restore(state.snapshot)
        state.python.restore()

    def close(self) -> None:
        """Free the machine."""
        self.machine.close()

    def __enter__(self) -> "Kernel":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _nothing(vcpu: Vcpu) -> None:
    """A host call without effect: restoring affinities, rescheduling."""
