"""Initialisation of an unbooted kernel by its own functions, in the kernel's order (init/main.c:start_kernel()).

What hardware, the boot loader and the early assembly set up is written directly: per-CPU bases, masks, the CPU's
features, the segments. Then the kernel's functions run; a release that lacks one has no such step.
"""

from __future__ import annotations

import re
import struct
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from emu.vmlinux.cpu_model import PLAIN, CpuModel
from emu.vmlinux.floor.memory import allocate, release
from emu.vmlinux.floor.state import (
    CLOCK,
    HEAP,
    HEAP_END,
    HEAP_NEXT,
    HEAP_SIZE,
    PERCPU_NEXT,
    SEED,
    TEXT_NEXT,
    VMAP,
    VMAP_NEXT,
)
from emu.vmlinux.machine_errors import RunError
from emu.vmlinux.unbooted_memory import MODULES

if TYPE_CHECKING:
    from emu.vmlinux.unbooted_machine import UnbootedMachine

__all__ = ["INITCALLS", "boot"]

INITCALLS = ("bpf", "btf", "kfunc", "iter_init", "fprobe")
"""Parts of the names of initcalls that are run: BPF, its type information and lists, and fprobe."""
_INITCALL = re.compile(r"__initcall__kmod_\w+?__\d+_\d+_(\w+?)(early|rootfs|\d+s?)$")
_LEVELS = {"early": -1.0, "rootfs": 5.5}
_CPU_INFO = (
    ("x86_cache_alignment", 64, "<I"),  # 0 would make ALIGN(size, 0) and so kzalloc(0) of early tracing
    ("x86_clflush_size", 64, "<H"),
    ("x86_phys_bits", 46, "<B"),
    ("x86_virt_bits", 48, "<B"),
    ("x86_max_cores", 1, "<H"),
    ("loops_per_jiffy", 4000000, "<Q"),
)
_ALTERNATIVES = (
    ("apply_retpolines", "__retpoline_sites", "__retpoline_sites_end"),
    ("apply_returns", "__return_sites", "__return_sites_end"),
    ("apply_alternatives", "__alt_instructions", "__alt_instructions_end"),
    ("callthunks_patch_builtin_calls", "", ""),
    ("apply_seal_endbr", "__ibt_endbr_seal", "__ibt_endbr_seal_end"),
)
_TRACING = (
    "early_trace_init",
    "trace_init",
    "init_kprobes",
    "perf_event_init",
    "init_kprobe_trace_early",
    "init_dynevent",
)
_SYSTEM_RUNNING = 3
_BUG_WORDS = 2
"""``NBUGINTS``."""
_PREEMPT_NEED_RESCHED_INVERTED = 0x80000000
_KERNEL_CS, _INTERRUPT_GATE = 0x10, 0x8E
_HANDLERS = {
    0: "asm_exc_divide_error",
    3: "asm_exc_int3",
    6: "asm_exc_invalid_op",
    13: "asm_exc_general_protection",
    14: "asm_exc_page_fault",
}
_TASKS = 0xFFFFC900000C0000


def boot(
    machine: UnbootedMachine,
    cpu: CpuModel = PLAIN,
    command_line: str = "",
    progress: Callable[[str, float], None] = lambda step, seconds: None,
) -> dict[str, int | str]:
    """Initialise a loaded machine; what each initcall and late step returned, or how it ended.

    ``command_line``: early parameters, as ``mitigations=off`` or ``retbleed=stuff``.

    ``progress`` is called with each step's name and seconds. Raises a :class:`RunError` where a step that everything
    needs fails.
    """
    start = time.perf_counter()

    def done(step: str) -> None:
        nonlocal start
        now = time.perf_counter()
        progress(step, now - start)
        start = now

    _set_up_floor_state(machine)
    _set_up_cpus(machine)
    _set_up_features(machine, cpu)
    done("cpus")
    machine.build_floor()
    done("floor")
    _set_up_interrupts(machine)
    for step in ("jump_label_init", "static_call_init", "ftrace_init"):
        _call_if_there(machine, step)
        done(step)
    if command_line:
        at = allocate(machine, len(command_line) + 1)
        machine.memory.write(at, command_line.encode() + b"\0")
        machine.call("parse_early_options", at)
        release(machine, at)
    if cpu.bugs:
        machine.call("cpu_select_mitigations")
        done("mitigations")
    for step, first, end in _ALTERNATIVES:
        if step not in machine.symbols:
            continue
        if not first:
            machine.call(step)
        elif first in machine.symbols:
            machine.call(step, machine.symbols[first], machine.symbols[end])
        done(step)
    machine.memory.write_u32(machine.symbols["system_state"], _SYSTEM_RUNNING)
    for step in ("radix_tree_init", "maple_tree_init", "wait_bit_init"):
        _call_if_there(machine, step)
    done("trees")
    results = _initcalls(machine)
    done("initcalls")
    results |= _tracing(machine)
    _call_if_there(machine, "ftrace_free_init_mem")  # functions of .init.text are gone on a booted kernel
    done("tracing")
    return results


def _call_if_there(machine: UnbootedMachine, function: str) -> None:
    if function in machine.symbols:
        machine.call(function)


def _set_up_floor_state(machine: UnbootedMachine) -> None:
    memory, symbols = machine.memory, machine.symbols
    section = symbols["__per_cpu_end"] - symbols["__per_cpu_start"]
    for at, value in (
        (HEAP_NEXT, HEAP + 0x1000),
        (HEAP_END, HEAP + HEAP_SIZE),
        (PERCPU_NEXT, section + 0xFFF & -0x1000),
        (TEXT_NEXT, MODULES + 0x1000),
        (CLOCK, 10**9),
        (SEED, 12345),
        (VMAP_NEXT, VMAP),
    ):
        memory.write_u64(at, value)


def _set_up_cpus(machine: UnbootedMachine) -> None:
    """setup_per_cpu_areas(), boot_cpu_init(), and one task a CPU."""
    memory, symbols, layout = machine.memory, machine.symbols, machine.layout

    def task_member(name: str) -> int:
        return layout.offset("task_struct", name)

    for number in range(len(machine.cpus)):
        base, top = machine.percpu_base(number), machine.stack_top(number)
        memory.write_u64(symbols["__per_cpu_offset"] + 8 * number, base)
        memory.write_u64(machine.percpu("this_cpu_off", number), base)
        memory.write_u32(
            machine.percpu_field("__preempt_count", "preempt_count", number), _PREEMPT_NEED_RESCHED_INVERTED
        )
        memory.write_u32(machine.percpu_field("cpu_number", "cpu_number", number), number)
        if "numa_node" in symbols:
            memory.write_u32(machine.percpu("numa_node", number), 0)
        task = symbols["init_task"]
        if number:
            task = _TASKS + number * 0x4000
            memory.write(task, memory.read(symbols["init_task"], layout.size("task_struct")))
            # The copy's mask is its own, or migrate_enable() would take it for a task that may not migrate.
            memory.write_u64(task + task_member("cpus_ptr"), task + task_member("cpus_mask"))
            memory.write_u32(task + task_member("thread_info.cpu"), number)
            memory.write_u32(task + task_member("pid"), number)
        memory.write_u64(machine.percpu_field("current_task", "current_task", number), task)
        memory.write_u64(task + task_member("stack"), top - 0x4000)
        memory.write_u64(machine.percpu_field("cpu_current_top_of_stack", "top_of_stack", number), top)
        for member in ("idle", "curr"):
            memory.write_u64(machine.percpu("runqueues", number) + layout.offset("rq", member), task)
    mask = (1 << len(machine.cpus)) - 1
    for name in ("__cpu_possible_mask", "__cpu_online_mask", "__cpu_present_mask", "__cpu_active_mask"):
        memory.write_u64(symbols[name], mask)
    for name in ("nr_cpu_ids", "__num_online_cpus", "__num_possible_cpus", "setup_max_cpus"):
        if name in symbols:
            memory.write_u32(symbols[name], len(machine.cpus))
    # One node: in the image every node is possible, and a BPF program pack has 2 MiB a node.
    memory.write(symbols["node_states"], (1).to_bytes(128, "little"))
    memory.write_u32(symbols["rcu_scheduler_active"], 2)
    if "early_boot_irqs_disabled" in symbols:
        memory.write(symbols["early_boot_irqs_disabled"], b"\0")


def _set_up_interrupts(machine: UnbootedMachine) -> None:
    """The interrupt descriptor table: by idt_setup_traps(), and gates of our own where that leaves exceptions out."""
    for step in ("idt_setup_traps", "idt_setup_early_pf"):
        _call_if_there(machine, step)
    table = machine.symbols["idt_table"]
    for vector, handler in _HANDLERS.items():
        entry = machine.symbols.get(handler)
        if entry is not None and not machine.memory.read(table + 16 * vector + 5, 1)[0] & 0x80:
            low, middle, high = entry & 0xFFFF, entry >> 16 & 0xFFFF, entry >> 32
            gate = struct.pack("<HHBBHII", low, _KERNEL_CS, 0, _INTERRUPT_GATE, middle, high, 0)
            machine.memory.write(table + 16 * vector, gate)


def _set_up_features(machine: UnbootedMachine, cpu: CpuModel) -> None:
    """Results of early_identify_cpu(): features, bugs (the last words of x86_capability), the model."""
    memory, layout, info = machine.memory, machine.layout, machine.symbols["boot_cpu_data"]
    words = info + layout.offset("cpuinfo_x86", "x86_capability")
    bug_words = layout.length("cpuinfo_x86", "x86_capability") - _BUG_WORDS
    for word, bit in (*cpu.features, *((bug_words + bug // 32, bug % 32) for bug in cpu.bugs)):
        memory.write_u32(words + 4 * word, memory.u32(words + 4 * word) | 1 << bit)
    identity = (("x86_vendor", cpu.vendor, "<B"), ("x86", cpu.family, "<B"), ("x86_model", cpu.model, "<B"))
    for member, value, form in (*_CPU_INFO, *identity):
        if layout.has("cpuinfo_x86", member):
            memory.write(info + layout.offset("cpuinfo_x86", member), struct.pack(form, value))


def _initcalls(machine: UnbootedMachine) -> dict[str, int | str]:
    """The initcalls of BPF in the kernel's order: level, then link order (that of the symbols' addresses)."""
    found = []
    for order, name in enumerate(machine.symbols.names):
        if name.startswith("__initcall__kmod_") and (parts := _INITCALL.match(name)):
            function, level = parts[1], parts[2]
            if any(word in function for word in INITCALLS) and function in machine.symbols:
                rank = _LEVELS.get(level)
                if rank is None:
                    rank = float(level.rstrip("s")) + (0.3 if level.endswith("s") else 0.0)
                found.append((rank, order, function))
    return {function: _attempt(machine, function) for _, _, function in sorted(found)}


def _tracing(machine: UnbootedMachine) -> dict[str, int | str]:
    """Trace events, kprobes and perf, which BPF programs attach through."""
    results = {step: _attempt(machine, step) for step in _TRACING if step in machine.symbols}
    return results


def _attempt(machine: UnbootedMachine, function: str) -> int | str:
    """A step that others do not depend on: its result as a C int, or how it ended (bpffs needs sysfs)."""
    try:
        result = machine.call(function) & 0xFFFFFFFF
    except RunError as error:
        for cpu in machine.cpus:
            cpu.unusable = None
        return str(error)
    if machine.layout.return_bytes(function) == 0:
        return 0
    return result - (1 << 32) if result >> 31 else result
