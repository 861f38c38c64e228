"""The kernel of a memory image, without an emulator: page tables, symbols, layouts, per-CPU data, tasks."""

from collections.abc import Iterator
from dataclasses import dataclass

from emu.errors import NotMapped
from emu.machine.address_map import ADDRESS_MASK
from emu.vmlinux.btf_layout import BtfLayout
from emu.vmlinux.code_names import CodeNames
from emu.vmlinux.dump import Dump
from emu.vmlinux.dump_errors import MissingInformation, MissingPage
from emu.vmlinux.dump_notes import CpuState
from emu.vmlinux.errors import NoKallsyms
from emu.vmlinux.generated_code import GeneratedCode, list_entries
from emu.vmlinux.kallsyms import Kallsyms
from emu.vmlinux.page_walk import PageTables, halves

KERNEL_MAP = 0xFFFFFFFF80000000
"""``__START_KERNEL_map``."""
_IMAGE_LIMIT = 1 << 30
_STEP = 2 << 20
_CR4_LA57 = 1 << 12
_SLACK = 8192
"""Bytes around the kallsyms tables that VMCOREINFO names: those that it does not name stand there."""


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """One task: guest address of its task_struct, pid, name."""

    address: int
    pid: int
    name: str


class DumpedKernel:
    """The kernel in a memory image.

    Raises MissingInformation where neither VMCOREINFO nor a CPU's registers lead to the page tables, or the kernel has
    no symbols or no BTF.
    """

    def __init__(self, dump: Dump) -> None:
        self.dump = dump
        self.memory = self._page_tables()
        self.symbols = self._symbols()
        self.layout = self._layout()
        self.release = dump.info.release if dump.info else self._release()
        self.refresh_code()

    def _page_tables(self) -> PageTables:
        """The kernel's own tables; where VMCOREINFO is missing, a CPU's."""
        dump, info = self.dump, self.dump.info
        control = next((cpu.control for cpu in dump.cpus if cpu.control), ())
        if info is not None:
            five = info.number("pgtable_l5_enabled") == 1 or bool(control and control[4] & _CR4_LA57)
            top = info.symbol("init_top_pgt") or info.symbol("swapper_pg_dir") or 0
            root = top - KERNEL_MAP + (info.number("phys_base") or 0) & ADDRESS_MASK
            memory = PageTables(dump.memory, root, 5 if five else 4, info.number("sme_mask") or 0)
            probe = info.symbol("_stext") or top
            if memory.is_mapped(probe) or self._is_table(memory, probe):
                return memory
        for cpu in dump.cpus:
            if cpu.control:
                memory = PageTables(dump.memory, 0, 5 if cpu.control[4] & _CR4_LA57 else 4)
                # The user half of isolated tables maps some of the kernel's text, the other half all of the image.
                sizes = {root: self._mapped_steps(memory, root) for root in halves(cpu.control[3])}
                memory.root = max(sizes, key=lambda root: len(sizes[root]))
                if sizes[memory.root]:
                    return memory
        raise MissingInformation(
            dump.path, "no usable VMCOREINFO and no CPU whose CR3 leads to the kernel: the page tables can't be found"
        )

    @staticmethod
    def _is_table(memory: PageTables, address: int) -> bool:
        """True if an address is mapped, though its page may have been filtered out."""
        try:
            memory.physical(address)
        except (NotMapped, MissingPage):
            return False
        return True

    def _symbols(self) -> Kallsyms:
        info = self.dump.info
        try:
            if info is not None and (count_at := info.symbol("kallsyms_num_syms")):
                count = self.memory.u32(count_at)
                tables = [int(value, 16) for name, value in info.values.items() if name.startswith("SYMBOL(kallsyms_")]
                start = min(tables) - _SLACK
                return Kallsyms.find(self.memory.read_sparse(start, max(tables) + 8 * count + _SLACK - start), start)
            start, end = self._image()
            return Kallsyms.find(self.memory.read_sparse(start, end - start), start)
        except (NoKallsyms, NotMapped, MissingPage) as error:
            raise MissingInformation(self.dump.path, f"no symbols: {error}") from None

    def _mapped_steps(self, memory: PageTables, root: int) -> list[int]:
        """Addresses in the kernel's part of the address space, every 2 MiB, that are mapped."""
        memory.root = root
        return [at for at in range(KERNEL_MAP, KERNEL_MAP + _IMAGE_LIMIT, _STEP) if self._is_table(memory, at)]

    def _image(self) -> tuple[int, int]:
        """The kernel image's first and last mapped address."""
        mapped = self._mapped_steps(self.memory, self.memory.root)
        if not mapped:
            raise NotMapped(KERNEL_MAP)
        return mapped[0], mapped[-1] + _STEP

    def _layout(self) -> BtfLayout:
        start, end = self.symbols.get("__start_BTF"), self.symbols.get("__stop_BTF")
        if start is None or end is None:
            raise MissingInformation(self.dump.path, "the kernel has no BTF (CONFIG_DEBUG_INFO_BTF)")
        return BtfLayout(self.memory.read_sparse(start, end - start))

    def _release(self) -> str:
        at = self.symbols.get("init_uts_ns")
        if at is None:
            return ""
        name = self.layout.offset("uts_namespace", "name") + self.layout.offset("new_utsname", "release")
        return self.memory.text(at + name, 65)

    def refresh_code(self) -> None:
        """Look again for code that the kernel generated."""
        found = GeneratedCode(self.memory, self.symbols, self.layout)
        self.code = CodeNames(self.symbols, found.ranges)
        self.gaps = found.gaps

    # Per-CPU data and tasks -----------------------------------------------------------------------------------------

    def per_cpu_base(self, cpu: int) -> int:
        """GS base of a CPU in kernel mode, from ``__per_cpu_offset``; the same as ``per_cpu_offset(cpu)``."""
        return self.memory.u64(self.symbols["__per_cpu_offset"] + 8 * cpu)

    def per_cpu(self, cpu: int, symbol: str, *, of_hot: str = "") -> int:
        """Guest address of a CPU's variable; ``of_hot`` is its member of ``pcpu_hot`` in kernels that keep it there."""
        base = self.per_cpu_base(cpu)
        if of_hot and symbol not in self.symbols and "pcpu_hot" in self.symbols:
            return base + self.symbols["pcpu_hot"] + self.layout.offset("pcpu_hot", of_hot) & ADDRESS_MASK
        return base + self.symbols[symbol] & ADDRESS_MASK

    def current(self, cpu: int) -> int:
        """Guest address of a CPU's pointer to its current task."""
        return self.per_cpu(cpu, "current_task", of_hot="current_task")

    def top_of_stack(self, cpu: int) -> int:
        """Guest address of a CPU's word with the top of its current task's stack."""
        return self.per_cpu(cpu, "cpu_current_top_of_stack", of_hot="top_of_stack")

    def preempt_count(self, cpu: int) -> int:
        """Guest address of a CPU's ``__preempt_count``."""
        return self.per_cpu(cpu, "__preempt_count", of_hot="preempt_count")

    def task_info(self, address: int) -> TaskInfo:
        """Pid and name of a task_struct."""
        layout = self.layout
        pid = self.memory.u32(address + layout.offset("task_struct", "pid"))
        return TaskInfo(address, pid, self.memory.text(address + layout.offset("task_struct", "comm"), 16))

    def tasks(self) -> Iterator[TaskInfo]:
        """All processes, init_task first. MissingPage where the list leads out of the dump."""
        link = self.layout.offset("task_struct", "tasks")
        first = self.symbols["init_task"]
        yield self.task_info(first)
        for task in list_entries(self.memory, first + link, link):
            yield self.task_info(task)

    def root_for(self, state: CpuState, stack: int) -> int:
        """The page tables that a CPU used, where they map the kernel and its stack; else the kernel's own."""
        if not state.control:
            return self.memory.root
        text = self.symbols["_stext"] if "_stext" in self.symbols else self.symbols["panic"]
        tables = PageTables(self.dump.memory, 0, self.memory.levels, self.memory.ignored)

        for root in halves(state.control[3]):
            tables.root = root
            if self._is_table(tables, text) and self._is_table(tables, stack - 8):
                return root
        return self.memory.root
