"""The guest structures of the kernel proper: tasks, run queues, per-CPU data, percpu_ref, SRCU, ftrace.

Names are the kernel's. Offsets are those of a 6.12 kernel (Debian 6.12.107, from its BTF), so a dump reads like one of
a real machine, and code recorded there finds the expected data; only fields in use are declared. All code uses the
declarations: moving a field here moves it in assembly text and in Python.
"""

from emu.machine.guest_struct import (
    ArrayView,
    GuestMemory,
    NoFieldError,
    Struct,
    StructError,
    StructField,
    StructView,
    embedded,
    raw,
    s32,
    struct_symbols,
    u8,
    u16,
    u32,
    u64,
)

__all__ = [
    "CPUMASK_WORDS",
    "PERCPU",
    "PERCPU_COUNT_BIAS",
    "PERCPU_REF_ATOMIC",
    "PERCPU_REF_ATOMIC_DEAD",
    "PERCPU_REF_DEAD",
    "PREEMPT_ENABLED",
    "PREEMPT_NEED_RESCHED",
    "STRUCTS",
    "ArrayView",
    "GuestMemory",
    "NoFieldError",
    "Struct",
    "StructError",
    "StructField",
    "StructView",
    "asm_symbols",
    "embedded",
    "ftrace_func_entry",
    "ftrace_hash",
    "ftrace_ops",
    "initialise_percpu",
    "initialise_srcu",
    "initialise_task",
    "klp_func",
    "percpu_ref",
    "percpu_ref_data",
    "pt_regs",
    "raw",
    "rq",
    "s32",
    "srcu_ctr",
    "srcu_struct",
    "struct_symbols",
    "task_struct",
    "u8",
    "u16",
    "u32",
    "u64",
]

CPUMASK_WORDS = 128
"""Words of a cpumask_t (NR_CPUS=8192)."""

task_struct = Struct(
    "task_struct",
    size=0x2640,
    fields={
        "__state": u32(0x18),
        "stack": u64(0x20),
        "flags": u32(0x2C),
        "on_cpu": s32(0x34),
        "nr_cpus_allowed": s32(0x3D8),
        # Points to cpus_mask, unless the task was switched out while migration was disabled (migrate_disable_switch()).
        "cpus_ptr": u64(0x3E0),
        "user_cpus_ptr": u64(0x3E8),
        "cpus_mask": u64(0x3F0).array(CPUMASK_WORDS),
        "migration_disabled": u16(0x7F8),
        "migration_flags": u16(0x7FA),
        "rcu_read_lock_nesting": s32(0x7FC),
        "rcu_tasks_nvcsw": u64(0x820),
        "rcu_tasks_holdout": u8(0x828),
        "rcu_tasks_idx": u8(0x829),
        "rcu_tasks_idle_cpu": s32(0x82C),
        "trc_reader_nesting": s32(0x858),
        "trc_reader_special": u32(0x860),
        # 7.0: the reader's SRCU counter. It replaces 6.12's trc_holdout_list.
        "trc_reader_scp": u64(0x868),
        "pid": s32(0x980),
        "tgid": s32(0x984),
        "comm": raw(0xBA0, 16),
        # One bit a context for each guard of ftrace callbacks (include/linux/trace_recursion.h).
        "trace_recursion": u64(0x13D0),
        "bpf_storage": u64(0x1468),
        "bpf_ctx": u64(0x1470),
    },
)

rq = Struct("rq", size=0xD80, fields={"cpu": s32(0xB68), "nr_pinned": u32(0xCF0)})

percpu_ref_data = Struct(
    "percpu_ref_data",
    size=0x38,
    fields={
        "count": u64(0x00),  # atomic_long_t, biased by PERCPU_COUNT_BIAS while the counters are per CPU
        "release": u64(0x08),
        "confirm_switch": u64(0x10),
        "force_atomic": u8(0x18),  # a bit-field, allow_reinit is its next bit
        "rcu": u64(0x20).array(2),
        "ref": u64(0x30),
    },
)

percpu_ref = Struct(
    "percpu_ref",
    size=0x10,
    fields={
        "percpu_count_ptr": u64(0x00),  # a per-CPU pointer to an unsigned long; the two low bits are its state
        "data": u64(0x08),
    },
)

PERCPU_REF_ATOMIC = 1
"""``__PERCPU_REF_ATOMIC``: the counter is ``percpu_ref_data.count`` (include/linux/percpu-refcount.h)."""
PERCPU_REF_DEAD = 2
"""``__PERCPU_REF_DEAD``: percpu_ref_kill() was called; the count falls to 0."""
PERCPU_REF_ATOMIC_DEAD = PERCPU_REF_ATOMIC | PERCPU_REF_DEAD
PERCPU_COUNT_BIAS = 1 << 63
"""Added to ``percpu_ref_data.count`` while counting is per CPU, so that it can't fall to 0 (lib/percpu-refcount.c)."""

srcu_ctr = Struct("srcu_ctr", size=0x10, fields={"srcu_locks": u64(0x00), "srcu_unlocks": u64(0x08)})
"""One pair of SRCU reader counters of a CPU (7.0)."""

srcu_struct = Struct("srcu_struct", size=0x20, fields={"srcu_ctrp": u64(0x00)})
"""An SRCU domain (7.0): ``srcu_ctrp`` is a per-CPU pointer to the srcu_ctr that new readers take."""

_PT_REGS = (
    *("r15", "r14", "r13", "r12", "bp", "bx", "r11", "r10", "r9", "r8", "ax", "cx", "dx", "si", "di"),
    *("orig_ax", "ip", "cs", "flags", "sp", "ss"),
)

pt_regs = Struct(
    "pt_regs",
    size=0xA8,
    fields={name: u64(8 * position) for position, name in enumerate(_PT_REGS)},
)
"""Registers saved by a stub (``struct ftrace_regs`` contains one); arguments in di, si, dx, cx, r8, r9."""

ftrace_ops = Struct(
    "ftrace_ops",
    size=0xD8,
    fields={
        "func": u64(0x00),
        "next": u64(0x08),
        "flags": u64(0x10),
        "private": u64(0x18),
        # local_hash, the ftrace_ops_hash that func_hash points to.
        "notrace_hash": u64(0x28),
        "filter_hash": u64(0x30),
        "func_hash": u64(0x58),
        "trampoline": u64(0x90),
        "trampoline_size": u64(0x98),
        "direct_call": u64(0xD0),
    },
)

ftrace_hash = Struct(
    "ftrace_hash",
    size=0x30,
    fields={"size_bits": u64(0x00), "buckets": u64(0x08), "count": u64(0x10), "flags": u64(0x18)},
)

ftrace_func_entry = Struct(
    "ftrace_func_entry", size=0x20, fields={"next": u64(0x00), "ip": u64(0x10), "direct": u64(0x18)}
)
"""An entry of an ftrace_hash; ``next`` is its hlist_node's."""

klp_func = Struct("klp_func", size=0x98, fields={"new_func": u64(0x08), "old_func": u64(0x18)})

PREEMPT_NEED_RESCHED = 0x80000000
"""Top bit of ``preempt_count``, inverted: *clear* when a reschedule is needed, so that one ``dec`` tests for both."""
PREEMPT_ENABLED = PREEMPT_NEED_RESCHED
"""``preempt_count`` of a CPU that may be preempted and need not reschedule (arch/x86/include/asm/preempt.h)."""

PERCPU = Struct(
    "percpu",
    size=0x36000,
    fields={
        # fixed_percpu_data: the compiler's stack protector reads it at gs:0x28.
        "stack_canary": u64(0x28),
        "this_cpu_off": u64(0x8000),
        # Value of sched_clock(), in nanoseconds of virtual time.
        "sched_clock": u64(0x8008),
        # rcu_tasks_trace_srcu_struct's counters of this CPU (7.0).
        "rcu_tasks_trace_srcu_ctrs": embedded(0x8010, srcu_ctr).array(2),
        "runqueues": embedded(0x33000, rq),
        # pcpu_hot, at the recorded 6.12 boots' address: their images count the call depth at gs:0x35010.
        "current_task": u64(0x35000),
        "preempt_count": u32(0x35008),
        "cpu_number": s32(0x3500C),
        "call_depth": u64(0x35010),
        "top_of_stack": u64(0x35018),
    },
)
"""The static per-CPU area. Offsets are from GS base; dynamic per-CPU memory may begin at ``PERCPU.size``."""

STRUCTS = (
    task_struct,
    rq,
    percpu_ref_data,
    percpu_ref,
    srcu_ctr,
    srcu_struct,
    pt_regs,
    ftrace_ops,
    ftrace_hash,
    ftrace_func_entry,
    klp_func,
    PERCPU,
)


def asm_symbols() -> dict[str, int]:
    """The symbols of all structures here for assembly text, and ``runqueues``, a per-CPU address."""
    return {**struct_symbols(STRUCTS), "runqueues": PERCPU.offset("runqueues")}


def initialise_percpu(memory: GuestMemory, base: int, cpu: int, *, current: int, stack_canary: int = 0) -> StructView:
    """Fill in the static per-CPU area of one CPU at a guest address; returns its view.

    ``base`` is also GS base and ``this_cpu_off``: per-CPU addresses count from 0. ``current``: the task that runs.
    """
    area = PERCPU.view(memory, base)
    area.this_cpu_off = base
    area.stack_canary = stack_canary
    area.cpu_number = cpu
    area.current_task = current
    area.preempt_count = PREEMPT_ENABLED
    area.runqueues.cpu = cpu
    return area


def initialise_srcu(memory: GuestMemory, address: int, ctrs: str = "rcu_tasks_trace_srcu_ctrs") -> StructView:
    """Fill in an srcu_struct at a guest address; returns its view. ``ctrs``: the per-CPU field of its counters."""
    domain = srcu_struct.view(memory, address)
    domain.srcu_ctrp = PERCPU.offset(ctrs)
    return domain


def initialise_task(memory: GuestMemory, address: int, *, pid: int, comm: str = "", cpus: int = 1) -> StructView:
    """Fill in a task_struct at a guest address; returns its view. It may run on the first ``cpus`` CPUs."""
    task = task_struct.view(memory, address)
    task.pid = task.tgid = pid
    task.comm = comm.encode()[:15]
    task.cpus_mask[0] = (1 << cpus) - 1
    task.nr_cpus_allowed = cpus
    task.cpus_ptr = task.address_of("cpus_mask")
    return task
