"""Runtime of programs: the helpers' code in the kernel's text, and the kernel's maps."""

from collections.abc import Iterable, Mapping

from asm.encodings import jmp_rel32
from emu.kernel.kernel import Kernel
from emu.kernel.routines import Routine
from emu.kernel.structs import PERCPU
from emu.kernel.text.entry import SITE_SIZE
from emu.machine.vcpu import Vcpu
from trampoline.bpf.errors import TrampolineError
from trampoline.bpf.helpers.runtime import current_task, loops, map_lookup, printing, probe_read, ringbuf
from trampoline.bpf.helpers.runtime.definition import GuestHelper, Helper, HelperCall, PythonHelper
from trampoline.bpf.helpers.runtime.printing import TraceLine
from trampoline.bpf.maps.map_memory import MapMemory
from trampoline.bpf.maps.map_table import KINDS, Maps
from trampoline.bpf.maps.rules import MapRules
from trampoline.bpf.prog import BpfPrograms
from trampoline.bpf.uapi import MapType

HELPERS: tuple[Helper, ...] = (
    *map_lookup.HELPERS,
    *loops.HELPERS,
    *current_task.HELPERS,
    *probe_read.HELPERS,
    *printing.HELPERS,
    *ringbuf.HELPERS,
)
"""Code of every helper and kfunc in a new lab."""
CALL_BASE = "__bpf_call_base"
"""Symbol that the immediates of helper calls are relative to."""
AT_BOOT = ("bpf_get_attach_cookie_tracing", "bpf_get_attach_cookie")
"""Helpers that the kernel's text already contains, for trampolines (``trampoline.callees``)."""
NSEC_PER_JIFFY = 4_000_000
"""CONFIG_HZ=250."""
INITIAL_JIFFIES = (1 << 64) - 300 * 250
RANDOM_SEED = 0x2545F491
"""Any number but 0; constant, so that runs repeat."""


class UnsupportedHelper(TrampolineError):
    """A program calls a kernel function without code here. ``Runtime.add`` adds one."""

    def __init__(self, name: str) -> None:
        super().__init__(f"no code for {name}: add it with Runtime.add(python_helper({name!r})(...))")
        self.name = name


class Runtime:
    """The helpers and maps of one kernel. Creating it adds their code to the kernel's text."""

    def __init__(
        self, programs: BpfPrograms, kernel: Kernel, layout: MapRules, helpers: Iterable[Helper] = ()
    ) -> None:
        self.programs, self.kernel, self.layout = programs, kernel, layout
        self.memory = MapMemory(kernel)
        self.maps = Maps(self)
        self.trace: list[TraceLine] = []
        """Lines that programs printed, the oldest first."""
        self.random_state = RANDOM_SEED
        self._now = 0
        self._addresses: dict[str, int] = {}
        self._ops: dict[MapType, int] = {}
        stride = self._percpu_stride()
        self._constants: Mapping[str, int] = {
            **layout.asm_symbols(),
            "cpus": len(kernel.machine.vcpus),
            "percpu_base": kernel.percpu_areas[0],
            "percpu_stride": stride,
        }
        self.jiffies_address = kernel.module_data(8, 8)
        kernel.kallsyms.add("jiffies", self.jiffies_address, 8)
        kernel.on_clock.append(self._clock_advanced)
        self._clock_advanced(int(PERCPU.view(kernel.machine, kernel.percpu_areas[0]).sched_clock))
        self.add(GuestHelper(CALL_BASE, "    xor eax, eax\n    ret\n"), *HELPERS, *helpers)
        self._make_ops()

    def _percpu_stride(self) -> int:
        areas = self.kernel.percpu_areas
        return areas[1] - areas[0] if len(areas) > 1 else 0

    def _clock_advanced(self, nanoseconds: int) -> None:
        self._now += nanoseconds
        jiffies = INITIAL_JIFFIES + self._now // NSEC_PER_JIFFY
        self.kernel.machine.write_u64(self.jiffies_address, jiffies)

    @property
    def now_ns(self) -> int:
        """Virtual time in nanoseconds."""
        return self._now

    # Helpers --------------------------------------------------------------------------------------------------------

    def add(self, *helpers: Helper) -> None:
        """Add helpers to the kernel; one with an existing name replaces it for programs loaded later.

        Raises asm.AsmError for text that cannot be assembled, MachineError if no host call is left; nothing is added
        then.
        """
        kernel = self.kernel
        made: dict[str, int] = {}
        guest: list[Routine] = []
        try:
            for helper in helpers:
                if isinstance(helper, PythonHelper):
                    made[helper.name] = kernel.machine.host_call(helper.name, _Answer(self, helper))
                else:
                    text = helper.text if isinstance(helper.text, str) else helper.text(kernel.config)
                    guest.append(Routine(helper.name, f".phase program\n{text}"))
            constants = {**self._constants, **self._addresses, **made}
            placed = kernel.add_routines(*guest, constants=constants)
        except BaseException:
            for address in made.values():
                kernel.machine.remove_host_call(address)
            raise
        for name, address in made.items():
            kernel.kallsyms.add(name, address, 1)
        made.update((function.name, function.address) for function in placed)
        self._addresses.update((name, self._entered(name, address)) for name, address in made.items())

    def _entered(self, name: str, code: int) -> int:
        """Entry address of a function: a kernel made from a BTF already has it, with a patch site but another body.

        There the patch site stays, so that the function can be traced, followed by a jump to the helper's code.
        """
        kernel = self.kernel
        text = next((text for text in kernel.functions.texts if name in text.positions), None)
        if text is None:
            return code
        function = kernel.functions.stamped_at(text.addresses[text.positions[name]])
        if function is None or function.site is None:
            return code
        after_site = function.site + SITE_SIZE
        kernel.machine.load(after_site, jmp_rel32(after_site, code))
        return function.address

    def address(self, name: str) -> int:
        """Guest address of a kernel function that programs call. Raises UnsupportedHelper if it has no code."""
        found = self._addresses.get(name)
        if found is None and name in AT_BOOT:
            found = self.kernel.kallsyms.address(name)
        if found is None:
            raise UnsupportedHelper(name)
        return found

    @property
    def functions(self) -> dict[str, int]:
        """Every kernel function that programs can call, with its guest address."""
        return {**{name: self.kernel.kallsyms.address(name) for name in AT_BOOT}, **self._addresses}

    @property
    def call_base(self) -> int:
        """Guest address of ``__bpf_call_base``."""
        return self._addresses[CALL_BASE]

    # Maps -----------------------------------------------------------------------------------------------------------

    def _make_ops(self) -> None:
        layout, machine = self.layout, self.kernel.machine
        for kind, (cls, _) in KINDS.items():
            address = self.kernel.module_data(layout.bpf_map_ops.size, 8)
            view = layout.bpf_map_ops.view(machine, address)
            for member, function in cls.operations.items():
                setattr(view, member, self._addresses[function])
            self._ops[kind] = address

    def ops(self, kind: MapType) -> int:
        """Guest address of a map type's ``struct bpf_map_ops``."""
        return self._ops[kind]

    def function(self, name: str) -> int:
        """Guest address of a map operation."""
        return self._addresses[name]


class _Answer:
    """Host call handler of a Python helper."""

    def __init__(self, runtime: Runtime, helper: PythonHelper) -> None:
        self._runtime, self._helper = runtime, helper

    def __call__(self, vcpu: Vcpu) -> int:
        return self._helper.call(HelperCall(self._runtime, vcpu))
