"""What a trampoline calls: cost in each configuration, balance, recursion, cookies, statistics, references."""

import pytest

from emu.kernel.config import CONFIGS
from emu.kernel.kernel import Kernel
from emu.kernel.routines import kernel_routines, routine_texts
from emu.kernel.structs import PERCPU, PREEMPT_ENABLED, task_struct
from emu.kernel.text.entry import EntryLayout
from emu.kernel.text.functions import FunctionText
from trampoline.bpf.structs import (
    asm_symbols,
    bpf_prog,
    bpf_prog_aux,
    bpf_prog_stats,
    bpf_tramp_image,
    bpf_tramp_run_ctx,
)
from trampoline.callees import BPF_STATS_ENABLED_KEY, NO_START_TIME, NOTRACE, callee_texts, callees
from trampoline.callees.prog_enter_exit import FORMS

SUFFIXES = [form.suffix for form in FORMS]
GUARDED = [form.suffix for form in FORMS if form.recursion_guard]


class Lab:
    """A kernel with one program, run contexts for it, and one image."""

    def __init__(self, config):
        self.config = config
        self.kernel = Kernel(
            entry=EntryLayout(endbr=True, padding=16), config=config, routines=callees(config), constants=asm_symbols()
        )
        machine, slab, percpu = self.kernel.machine, self.kernel.slab, self.kernel.percpu
        self.prog = bpf_prog.view(machine, slab.alloc(bpf_prog.size, "bpf_prog"))
        self.prog.active = percpu.alloc(4, "active")
        self.prog.stats = percpu.alloc(bpf_prog_stats.size, "stats")
        self.aux = bpf_prog_aux.view(machine, slab.alloc(bpf_prog_aux.size, "bpf_prog_aux"))
        self.prog.aux = self.aux.address_of("refcnt")
        self.contexts = [
            bpf_tramp_run_ctx.view(machine, slab.alloc(bpf_tramp_run_ctx.size, "run context")) for _ in range(2)
        ]
        image = slab.alloc(bpf_tramp_image.size, "bpf_tramp_image")
        self.image = bpf_tramp_image.view(machine, image)
        self.released = []
        self.kernel.percpu_refs.init(self.image.address_of("pcref"), lambda: self.released.append(image), "image")
        self.task = task_struct.view(machine, self.kernel.current(machine.vcpus[0]))
        self.area = PERCPU.view(machine, self.kernel.percpu_areas[0])

    def enter(self, suffix="_recur", context=0):
        """The call of __bpf_prog_enter*."""
        prog, run_ctx = self.prog.address_of("pages"), self.contexts[context].address_of("bpf_cookie")
        return self.kernel.call(f"__bpf_prog_enter{suffix}", prog, run_ctx)

    def exit(self, start, suffix="_recur", context=0):
        """The call of __bpf_prog_exit*."""
        prog, run_ctx = self.prog.address_of("pages"), self.contexts[context].address_of("bpf_cookie")
        return self.kernel.call(f"__bpf_prog_exit{suffix}", prog, start, run_ctx)

    def tramp(self, way):
        """The call of __bpf_tramp_enter or __bpf_tramp_exit."""
        return self.kernel.call(f"__bpf_tramp_{way}", self.image.address_of("image"))

    @property
    def active(self):
        """How often the program runs on CPU 0."""
        return self.kernel.percpu.values(self.prog.active, 4)[0]

    def stats(self):
        """cnt, nsecs, misses on CPU 0."""
        view = bpf_prog_stats.view(self.kernel.machine, self.kernel.percpu.address(self.prog.stats, 0))
        return view.cnt, view.nsecs, view.misses

    def state(self):
        """All that entering and leaving a program must leave as it was."""
        return (
            self.task.bpf_ctx,
            self.task.migration_disabled,
            self.task.trc_reader_nesting,
            self.area.runqueues.nr_pinned,
            self.area.preempt_count,
            self.active,
        )


@pytest.fixture(params=sorted(CONFIGS))
def lab(request):
    made = Lab(CONFIGS[request.param])
    yield made
    made.kernel.close()


COUNTS = {
    # (enter, exit) with everything that they call
    "voluntary": {
        "_recur": (29, 37), "_sleepable_recur": (33, 48), "": (21, 33), "_sleepable": (25, 44), "_lsm_cgroup": (20, 32),
    },
    "lazy": {
        "_recur": (13, 13), "_sleepable_recur": (34, 31), "": (8, 11), "_sleepable": (29, 29), "_lsm_cgroup": (7, 6),
    },
    "none": {
        "_recur": (12, 11), "_sleepable_recur": (31, 28), "": (7, 9), "_sleepable": (26, 26), "_lsm_cgroup": (6, 4),
    },
}  # fmt: skip
TRAMP_COUNTS = {"voluntary": (5, 5), "lazy": (8, 8), "none": (5, 5)}


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_counts_of_enter_and_exit(lab, suffix):
    enter = lab.enter(suffix)
    assert enter.value == NO_START_TIME
    costs = enter.counts.instructions, lab.exit(enter.value, suffix).counts.instructions
    assert costs == COUNTS[lab.config.name][suffix]


def test_counts_of_holding_an_image(lab):
    costs = tuple(lab.tramp(way).counts.instructions for way in ("enter", "exit"))
    assert costs == TRAMP_COUNTS[lab.config.name]


@pytest.mark.parametrize(("config", "around_program", "around_original"), [("voluntary", 66, 10), ("lazy", 26, 16)])
def test_the_anchors_shares(config, around_program, around_original):
    """What T of fentry and fexit leaves for the callees beside the images that 6.12 and 7.2 generate."""
    assert sum(COUNTS[config]["_recur"]) == around_program
    assert sum(TRAMP_COUNTS[config]) == around_original


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_inside_a_program_everything_is_held_and_afterwards_as_before(lab, suffix):
    form = FORMS[SUFFIXES.index(suffix)]
    lab.task.bpf_ctx = 0xFFFF888000000123
    before = lab.state()
    start = lab.enter(suffix).value
    assert lab.task.bpf_ctx == lab.contexts[0].address_of("bpf_cookie")
    assert lab.contexts[0].saved_run_ctx == 0xFFFF888000000123
    assert lab.active == int(form.recursion_guard)
    pinned = int(form.sleepable or not lab.config.dont_migrate)
    assert (lab.task.migration_disabled, lab.area.runqueues.nr_pinned) == (pinned, pinned)
    assert lab.task.trc_reader_nesting == int(form.sleepable)
    counted = lab.config.preempt_count and not form.sleepable
    assert lab.area.preempt_count == PREEMPT_ENABLED + int(counted), "a non-preemptible RCU reader is not preempted"
    lab.exit(start, suffix)
    assert lab.state() == before


@pytest.mark.parametrize("suffix", GUARDED)
def test_a_program_does_not_run_inside_itself(lab, suffix):
    before = lab.state()
    assert lab.enter(suffix, context=0).value == NO_START_TIME
    inside = lab.state()
    assert lab.enter(suffix, context=1).value == 0
    assert lab.stats() == (0, 0, 1)
    assert lab.active == 2, "counted although it does not run"
    assert lab.contexts[1].saved_run_ctx == lab.contexts[0].address_of("bpf_cookie")
    lab.exit(0, suffix, context=1)
    assert lab.state() == inside
    assert lab.enter(suffix, context=1).value == 0, "still inside the first run"
    lab.exit(0, suffix, context=1)
    lab.exit(NO_START_TIME, suffix, context=0)
    assert lab.state() == before
    assert lab.stats() == (0, 0, 2)
    assert lab.enter(suffix).value == NO_START_TIME


def test_misses_are_this_cpus():
    config = CONFIGS["voluntary"]
    lab = Lab(config)
    try:
        lab.enter()
        lab.enter(context=1)
        assert lab.kernel.percpu.values(lab.prog.stats + bpf_prog_stats.offset("misses")) == [1]
    finally:
        lab.kernel.close()


def test_a_refused_run_calls_recursion_detected(lab):
    seen = lab.kernel.slab.alloc(8, "what was called")
    lab.kernel.add_functions(_recorder("on_recursion", seen))
    lab.aux.recursion_detected = lab.kernel.kallsyms.address("on_recursion")
    lab.enter()
    assert lab.kernel.machine.read(seen, 8) == bytes(8)
    assert lab.enter(context=1).value == 0
    assert lab.kernel.machine.read(seen, 8) == lab.prog.address_of("pages").to_bytes(8, "little")


def _recorder(name, where):
    """A function that stores its first argument and spoils every register that it may."""
    spoil = "".join(f"    mov {register}, -1\n" for register in ("rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11"))
    text = f"    mov rax, {where}\n    mov qword ptr [rax], rdi\n{spoil}    mov rax, -1\n    ret\n"
    return FunctionText(name, text, traceable=False)


@pytest.mark.parametrize("suffix", ["", "_sleepable", "_lsm_cgroup"])
def test_without_a_guard_a_program_nests(lab, suffix):
    before = lab.state()
    lab.enter(suffix, context=0)
    assert lab.enter(suffix, context=1).value == NO_START_TIME
    assert lab.task.trc_reader_nesting == (2 if suffix == "_sleepable" else 0)
    lab.exit(NO_START_TIME, suffix, context=1)
    assert lab.task.bpf_ctx == lab.contexts[0].address_of("bpf_cookie")
    lab.exit(NO_START_TIME, suffix, context=0)
    assert lab.state() == before


@pytest.mark.parametrize("reader", ["bpf_get_attach_cookie_tracing", "bpf_get_attach_cookie"])
def test_the_cookie_is_that_of_the_innermost_program(lab, reader):
    lab.contexts[0].bpf_cookie, lab.contexts[1].bpf_cookie = 0x1000000000000A, 0xFFFFFFFFFFFFFFFB
    lab.enter("", context=0)
    assert lab.kernel.call(reader).value == 0x1000000000000A
    lab.enter("", context=1)
    assert lab.kernel.call(reader).value == 0xFFFFFFFFFFFFFFFB
    lab.exit(NO_START_TIME, "", context=1)
    assert lab.kernel.call(reader).value == 0x1000000000000A


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_statistics_behind_the_static_key(lab, suffix):
    timed = FORMS[SUFFIXES.index(suffix)].timed
    lab.kernel.static_key(BPF_STATS_ENABLED_KEY, enabled=True)
    lab.area.sched_clock = 1000
    before = lab.state()
    start = lab.enter(suffix).value
    assert start == (1000 if timed else NO_START_TIME)
    lab.area.sched_clock = 1700
    lab.exit(start, suffix)
    assert lab.stats() == ((1, 700, 0) if timed else (0, 0, 0))
    assert lab.state() == before
    lab.kernel.static_key(BPF_STATS_ENABLED_KEY, enabled=False)
    enter = lab.enter(suffix)
    assert enter.value == NO_START_TIME
    costs = enter.counts.instructions, lab.exit(enter.value, suffix).counts.instructions
    assert costs == COUNTS[lab.config.name][suffix], "off costs one nop again"
    assert lab.stats() == ((1, 700, 0) if timed else (0, 0, 0))


def test_statistics_that_change_during_a_run_count_nothing(lab):
    start = lab.enter().value
    lab.kernel.static_key(BPF_STATS_ENABLED_KEY, enabled=True)
    lab.area.sched_clock = 5000
    lab.exit(start)
    assert lab.stats() == (0, 0, 0), "on between enter and exit: no start time"
    start = lab.enter().value
    assert start == 5000
    lab.enter(context=1)
    lab.exit(0, context=1)
    assert lab.stats() == (0, 0, 1), "a refused run has no duration"
    lab.kernel.static_key(BPF_STATS_ENABLED_KEY, enabled=False)
    lab.exit(start)
    assert lab.stats() == (0, 0, 1), "off between enter and exit"


CALLEE_SAVED = ("rbx", "rbp", "r12", "r13", "r14", "r15")


def _keeps_registers(callee):
    """A function that passes its arguments on and answers 0 if callee-saved registers and rsp came back unchanged."""
    lines = [f"push {register}" for register in CALLEE_SAVED]
    lines += [f"mov {register}, {0x1111 * number}" for number, register in enumerate(CALLEE_SAVED, 1)]
    lines += ["mov qword ptr gs:[percpu.top_of_stack], rsp", f"call {callee}", "xor eax, eax"]
    for number, register in enumerate(CALLEE_SAVED, 1):
        lines += [f"xor {register}, {0x1111 * number}", f"or rax, {register}"]
    lines += ["mov rcx, rsp", "sub rcx, qword ptr gs:[percpu.top_of_stack]", "or rax, rcx"]
    lines += [f"pop {register}" for register in reversed(CALLEE_SAVED)]
    return FunctionText(f"keeps_{callee}", "\n".join([*lines, "ret"]), traceable=False)


@pytest.mark.parametrize("statistics", [False, True])
def test_callee_saved_registers_and_the_stack_survive_every_path(lab, statistics):
    names = sorted(name for name in callees(lab.config) if name.startswith("__bpf_"))
    lab.kernel.add_functions(*(_keeps_registers(name) for name in names))
    lab.kernel.static_key(BPF_STATS_ENABLED_KEY, enabled=statistics)
    lab.area.sched_clock = 10
    prog, image = lab.prog.address_of("pages"), lab.image.address_of("image")
    first, second = (context.address_of("bpf_cookie") for context in lab.contexts)

    def kept(name, *args):
        return lab.kernel.call(f"keeps_{name}", *args).value == 0

    for suffix in SUFFIXES:
        enter, leave = f"__bpf_prog_enter{suffix}", f"__bpf_prog_exit{suffix}"
        assert kept(enter, prog, first), suffix
        assert kept(enter, prog, second), "refused, or nested"
        assert kept(leave, prog, 0, second), "not run"
        assert kept(leave, prog, 10, first), "timed"
    assert kept("__bpf_tramp_enter", image)
    lab.kernel.percpu_refs.kill(lab.image.address_of("pcref"))
    lab.kernel.rcu.settle()
    assert kept("__bpf_tramp_enter", image)
    assert kept("__bpf_tramp_exit", image)
    assert kept("__bpf_tramp_exit", image)
    assert lab.released


def test_a_clock_at_zero_does_not_mean_skip(lab):
    lab.kernel.static_key(BPF_STATS_ENABLED_KEY, enabled=True)
    lab.area.sched_clock = 0
    assert lab.enter().value == NO_START_TIME


def test_a_killed_image_is_released_by_its_last_holder(lab):
    lab.tramp("enter")
    lab.tramp("enter")
    lab.kernel.percpu_refs.kill(lab.image.address_of("pcref"))
    lab.kernel.rcu.settle()
    lab.tramp("exit")
    assert lab.released == []
    lab.tramp("exit")
    assert lab.released == [lab.image.address_of("image")]
    assert lab.area.preempt_count == PREEMPT_ENABLED


def test_with_return_thunks_every_return_is_one_instruction_more(lab):
    config = lab.config
    plain, thunked = callee_texts(config), callee_texts(config, return_thunk=True)
    assert plain.keys() == thunked.keys()
    for name, text in thunked.items():
        assert "    ret\n" not in text, name
        assert text.count("jmp __x86_return_thunk\n") == plain[name].count("    ret\n")


def test_every_symbol_that_a_callee_needs_exists():
    for config in CONFIGS.values():
        known = callees(config).keys() | kernel_routines(config).keys() | {"runqueues", "rcu_tasks_trace_srcu_struct"}
        for routine in callees(config).values():
            assert set(routine.symbols) <= known, routine.name
            assert not routine.host_call
            for entry in routine.jump_entries:
                assert f"{entry.site}:\n    nop5" in routine.text
                assert f"{entry.target}:" in routine.text
        assert not callee_texts(config).keys() & routine_texts(config).keys()


def test_labels_are_unique_over_all_texts():
    for config in CONFIGS.values():
        texts = (*callee_texts(config).values(), *routine_texts(config).values())
        labels = [line for text in texts for line in text.splitlines() if line.endswith(":")]
        assert len(labels) == len(set(labels))


def test_what_is_never_traced():
    for config in CONFIGS.values():
        assert {name for name in callees(config) if name.startswith("__bpf_")} <= NOTRACE
