"""Replay of recorded cases: boot a synthetic kernel at the recorded addresses, attach the recorded programs, call, and
compare what they saw.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

from emu.kernel.config import VOLUNTARY
from emu.kernel.text.entry import SITE_SIZE
from emu.kernel.text.functions import FunctionText
from emu.machine.address_map import AddressMap
from emu.machine.execution_hook import watch_execution
from trampoline.bpf.prog import BpfProg, Uses
from trampoline.bpf.uapi import ATTACH_WORDS
from trampoline.image.generator import ProgCall
from trampoline.lab import Lab
from trampoline.lab.links.tracing import TracingLink
from trampoline.tools.golden.ftrace_users import REGS_CALLER, FtraceUsers, moments, stub_addresses
from trampoline.tools.golden.function_bodies import Invocation, body_of, invocations, recorded_args, recorded_return
from trampoline.tools.golden.trampoline_case import Case, RecordedProgram, RecordedTarget, SiteStep
from trampoline.tools.golden.trampoline_images import TRAMPOLINE, Difference, attached_programs, target_of
from trampoline.tramp_links import kind_of, links_of
from trampoline.update.target import TraceTarget

TEXT_GAP, TEXT_ALIGN, LAST_TEXT = 128 << 20, 2 << 20, 0xFFFFFFFFBD000000
"""Distance of the synthetic text from the recorded kernel's (larger than a kernel), its alignment, and its highest
start address.
"""
PLAIN_RETURN = "__x86_return_thunk"
"""Effect of a return thunk whose code is not available: return."""
SLOT_SIZE = 0x100
SLOT_OFFSETS = {
    "count": 0x00,
    "args": 0x08,
    "ret": 0x68,
    "func_ip": 0x70,
    "cookie": 0x78,
    "arg0_by_helper": 0x80,
    "ret_by_helper": 0x88,
    "arg_cnt_by_helper": 0x90,
    "session_cookie": 0x98,
    "session_is_return": 0xA0,
}
"""Layout of the recorded programs' results, in bytes from the start of their map slot."""

_MASK = (1 << 64) - 1


@dataclass(slots=True)
class ReplayOutcome:
    """Differences of one case; ``failures``: errors that ended its replay."""

    site_differences: list[Difference] = field(default_factory=list)
    replay_differences: list[Difference] = field(default_factory=list)
    failures: list[Difference] = field(default_factory=list)


class ReplayKernel:
    """A kernel for the cases of one boot. Cases run in order; each restores the initial state."""

    def __init__(self, case: Case) -> None:
        self.lab = Lab(case.release, VOLUNTARY, boot=case.boot, layout=_layout(case))
        self._cells: dict[tuple[str, int], int] = {}
        self._linked: set[int] = set()
        if case.boot.call_depth_offset is not None:
            # If per-CPU symbols do not start from 0 (6.15), the counter is far from the synthetic per-CPU area.
            area = self.lab.kernel.percpu_areas[0]
            self.lab.kernel.map_data(area + case.boot.call_depth_offset & _MASK, 8)

    def close(self) -> None:
        """Free the machine."""
        self.lab.close()

    def replay(self, case: Case) -> ReplayOutcome:
        """Attach and detach as recorded, checking the sites after each step; call once everything is attached."""
        self._link_symbols(case)
        self._link_stubs(case)
        run = _Run(self.lab, case, {target.name: self._place(target) for target in case.targets})
        try:
            return run.run()
        finally:
            run.clean_up()

    def _link_symbols(self, case: Case) -> None:
        """Redirect the recorded addresses of the kernel's callees to the synthetic ones."""
        kernel = self.lab.kernel
        for name, address in case.symbols.items():
            function = kernel.functions.get(name)
            traced = function is not None and function.site is not None
            if address not in self._linked and name in kernel.kallsyms and not traced:
                kernel.add_symbol_at(address, name)
                self._linked.add(address)
        thunk = case.boot.return_thunk
        if thunk is not None and thunk not in self._linked:
            kernel.add_symbol_at(thunk, PLAIN_RETURN)
            self._linked.add(thunk)

    def _link_stubs(self, case: Case) -> None:
        """Let sites with several users call the recorded ftrace_regs_caller."""
        kernel = self.lab.kernel
        for address in stub_addresses(case):
            if address not in self._linked:
                kernel.add_symbol_at(address, REGS_CALLER)
                self._linked.add(address)
            kernel.ftrace.use_stubs(caller=kernel.kallsyms.address("ftrace_caller"), regs_caller=address)

    def _place(self, target: RecordedTarget) -> int:
        """Place a target's function at its recorded address; the guest address of its cell: run count, return."""
        key = (target.name, target.addr)
        if key not in self._cells:
            kernel, number = self.lab.kernel, len(self._cells)
            cell = kernel.slab.alloc(16, f"cell of {target.name}")
            name = target.name.lstrip("@")
            kernel.add_functions(FunctionText(f"{name}.body{number}", body_of(target, cell), traceable=False))
            kernel.add_functions(
                FunctionText(
                    f"{name}.{number}",
                    f"jmp {name}.body{number}",
                    sealed=target.sealed,
                    endbr=target.patch_offset > 0,
                    address=target.addr,
                )
            )
            self._cells[key] = cell
        return self._cells[key]


class _Run:
    """Replay of one case on a kernel."""

    def __init__(self, lab: Lab, case: Case, cells: dict[str, int]) -> None:
        self._lab, self._kernel, self._case, self._cells = lab, lab.kernel, case, cells
        self._progs: dict[str, BpfProg] = {}
        self._links: dict[tuple[str, str], TracingLink] = {}
        self._users = FtraceUsers(lab.kernel, case)
        self._ran: list[str] = []
        self._outcome = ReplayOutcome()

    def run(self) -> ReplayOutcome:
        targets = self._case.targets
        for program in self._case.programs:
            if not program.refused and not program.is_fprobe:
                self._load(program)
        self._users.begin()
        for target in targets:
            self._look(target, "before", target.site_before)
        for moment in moments(self._case):
            self._users.follow(moment)
            for target, number in moment:
                self._step(target, number)
        for target in targets:
            self._look(target, "after", target.site_after)
        if self._case.status in ("live", "attached"):
            self._call_all()
        self._users.detach_programs()
        for target in targets:
            self._detach_all(target)
            if target.site_detached is not None:
                self._look(target, "detached", target.site_detached)
        return self._outcome

    def clean_up(self) -> None:
        """Detach and free everything of the case."""
        for target in self._case.targets:
            self._detach_all(target)
        self._users.end()
        for prog in self._progs.values():
            self._lab.unload(prog)

    def _load(self, program: RecordedProgram) -> None:
        if program.map_value is not None:
            self._kernel.map_data(program.map_value, SLOT_SIZE)
            self._kernel.machine.write(program.map_value, bytes(SLOT_SIZE))
        prog = self._lab.programs.load_image(
            program.name,
            ATTACH_WORDS[program.attach],
            program.jited,
            address=program.jited_addr,
            sleepable=program.sleepable,
            uses=Uses(func_ip=program.uses_func_ip, session_cookie=program.uses_session_cookie),
        )
        self._progs[program.name] = prog

    def _step(self, target: RecordedTarget, number: int) -> None:
        step = target.steps[number]
        before = attached_programs(self._case, target, number - 1) if number else []
        after = attached_programs(self._case, target, number)
        for program in before:
            if program not in after:
                self._expect_image(target, step)
                self._detach(target, program.name)
        for program in after:
            if program not in before:
                self._expect_image(target, step)
                self._attach(target, program)
        self._look(target, f"after {step.after}" if number else "at the start", step.site)

    def _expect_image(self, target: RecordedTarget, step: SiteStep) -> None:
        """Make the allocator return the recorded address for the next image, unless the site has several users."""
        address = step.target
        if address in stub_addresses(self._case):
            address = next(
                image.addr
                for image in self._case.images
                if image.kind == TRAMPOLINE and target_of(self._case, image) is target
            )
        self._kernel.execmem.reserved = [address] if address else []

    def _attach(self, target: RecordedTarget, program: RecordedProgram) -> None:
        prog = self._progs[program.name]
        where = TraceTarget(
            target.name,
            target.addr,
            target.model,
            1 << 32 | 0x80000000 | target.btf_id,
            target.model.arg_sizes,
            site_offset=target.patch_offset,
            tail_call_reachable=target.tail_call_reachable,
        )
        link = TracingLink(self._lab, prog, where, program.cookie_at(target.btf_id) & _MASK)
        link.attach()
        self._links[target.name, program.name] = link

    def _detach(self, target: RecordedTarget, name: str) -> None:
        self._links.pop((target.name, name)).detach()

    def _detach_all(self, target: RecordedTarget) -> None:
        self._kernel.execmem.reserved = []
        for where, name in [key for key in self._links if key[0] == target.name]:
            assert where == target.name
            self._detach(target, name)

    def _look(self, target: RecordedTarget, moment: str, recorded: bytes) -> None:
        size = target.patch_offset + SITE_SIZE
        found = self._kernel.machine.read(target.addr, size)
        if found != recorded[:size]:
            offset = next((i for i, (a, b) in enumerate(zip(found, recorded, strict=False)) if a != b), len(recorded))
            what = f"site of {target.name}, {moment}"
            self._outcome.site_differences.append(
                Difference(self._case.id, what, offset, recorded[:size].hex(), found.hex())
            )

    # Calls ----------------------------------------------------------------------------------------------------------

    def _call_all(self) -> None:
        remove = self._watch_programs()
        try:
            for target in self._case.targets:
                if attached_programs(self._case, target):
                    self._call_target(target)
        finally:
            remove()
        for program in self._case.programs:
            if program.name in self._progs and program.map_value is not None:
                self._compare_slot(program)

    def _watch_programs(self) -> Callable[[], None]:
        names = {prog.bpf_func: name for name, prog in self._progs.items()}
        return watch_execution(self._kernel.machine.vcpus[0], names, lambda address: self._ran.append(names[address]))

    def _call_target(self, target: RecordedTarget) -> None:
        machine, cell = self._kernel.machine, self._cells[target.name]
        expected_order, runs_origin = self._expectation(target)
        for invocation in invocations(self._case, target):
            self._ran.clear()
            machine.write_u64(cell, 0)
            machine.write_u64(cell + 8, recorded_return(self._case, target))
            args = self._arguments(target, invocation)
            registers, stack = _split(target, args)
            self._kernel.call(target.addr, *registers, stack_args=stack)
            self._differ(f"order of programs on {target.name}", expected_order, list(self._ran))
            self._differ(f"runs of {target.name} itself", int(runs_origin), machine.read_u64(cell))

    def _expectation(self, target: RecordedTarget) -> tuple[list[str], bool]:
        """The programs that must run, in order, and whether the original must: an fmod_ret result other than 0 skips
        it.
        """
        links = links_of(
            (kind_of(ATTACH_WORDS[p.attach], target.model), ProgCall(p.name, 0, 0))
            for p in attached_programs(self._case, target)
        )
        order = [call.name for call in links.fentry]
        skipped = False
        for call in links.fmod_ret:
            order.append(call.name)
            if self._case.program(call.name).retval:
                skipped = True
                break
        return order + [call.name for call in links.fexit], not skipped

    def _arguments(self, target: RecordedTarget, invocation: Invocation) -> list[int]:
        args: list[int] = []
        recorded = recorded_args(self._case, target)
        for position, value in enumerate(invocation.args):
            if value is None:
                value = recorded[position] or self._scratch()
                self._kernel.map_data(value, 8)
                self._kernel.machine.write_u32(value, invocation.pointee)
            args.append(value)
        return args

    def _scratch(self) -> int:
        return self._kernel.layout.vmalloc + 0x1000

    def _compare_slot(self, program: RecordedProgram) -> None:
        sharing = [p for p in self._case.programs if p.map_value == program.map_value]
        got = {name: self._read_slot(program, offset, name) for name, offset in SLOT_OFFSETS.items()}
        if len(sharing) == 1:
            for item in fields(program.observed):
                self._differ(f"{program.name} saw {item.name}", getattr(program.observed, item.name), got[item.name])

    def _read_slot(self, program: RecordedProgram, offset: int, name: str) -> int | tuple[int, ...]:
        assert program.map_value is not None
        read = self._kernel.machine.read_u64
        if name == "args":
            return tuple(read(program.map_value + offset + 8 * i) for i in range(12))
        return read(program.map_value + offset)

    def _differ(self, what: str, expected: Any, got: Any) -> None:
        if expected != got:
            self._outcome.replay_differences.append(Difference(self._case.id, what, -1, expected, got))


def _split(target: RecordedTarget, slots: list[int]) -> tuple[list[int], list[int]]:
    """Argument slots divided by the ABI into registers and stack."""
    registers: list[int] = []
    stack: list[int] = []
    position = 0
    for arg, (_, in_regs) in zip(target.model.args, target.model.placement(), strict=True):
        (registers if in_regs else stack).extend(slots[position : position + arg.slots])
        position += arg.slots
    return registers, stack


def _layout(case: Case) -> AddressMap:
    """Address layout: synthetic text next to the recorded kernel's, within reach of it and of the recorded images."""
    text = [target.addr for target in case.targets if not target.is_program]
    text += [address for name, address in case.symbols.items() if name.startswith("__bpf_")]
    base = (max(text, default=AddressMap().text) + TEXT_GAP) & -TEXT_ALIGN
    if base > LAST_TEXT:
        base = (min(text) - TEXT_GAP) & -TEXT_ALIGN
    return AddressMap(
        text=base,
        host_calls=base + (16 << 20),
        modules=0xFFFFFFFFF0000000,
        direct_map=0xFFFF890000000000,
        percpu=0xFFFF8A0000000000,
        vmalloc=0xFFFFA00000000000,
        stacks=0xFFFFA00010000000,
    )
