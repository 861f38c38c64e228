"""Everybody else: statistics, grace periods, modules, programs as targets."""

from errno import EWOULDBLOCK
from functools import partial
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from emu.kernel.text.functions import AssemblyFunctions, FunctionText
from emu.machine.vcpu import Vcpu
from trampoline.bpf.errors import KernelError
from trampoline.bpf.prog import ProgContext
from trampoline.bpf.uapi import AttachType
from trampoline.testing.reference_model import Original
from trampoline.testing.rules.base import CPUS, INNER, OUTER, SLEEPER, step
from trampoline.testing.rules.ftrace_users import UserSteps

MODULE, MODULE_FUNCTION = "tramplab_module", "tramplab_of_module"
_COUNTER = 0x7A11_0000_C0DE_0021
"""What stands for the pointer to a tail-call counter."""


class OtherSteps(UserSteps):
    """Everybody else."""

    @rule(data=st.data())
    @step
    def statistics(self, data: st.DataObject) -> None:
        """Run-time statistics are turned on, or off, whoever is in a program."""
        on = not self.reference.timed
        if self.or_again(data, lambda: self.lab.stats(enabled=on), failure=self.draw_failure(data)):
            self.reference.time(on=on)

    @rule(on=st.booleans())
    @step
    def grace_periods(self, on: bool) -> None:
        """Grace periods end as soon as they can, or stay."""
        self.lab.kernel.rcu.automatic = on
        self.lab.kernel.rcu.settle()

    @rule()
    @step
    def some_grace_periods(self) -> None:
        """Those end that can."""
        self.lab.kernel.rcu.poll()

    # Modules and programs as targets --------------------------------------------------------------------------------

    @precondition(lambda self: MODULE not in self.lab.kernel.modules)
    @rule(
        data=st.data(), multi=st.booleans(), twin=st.booleans(), kind=st.sampled_from(("fentry", "fexit", "fmod_ret"))
    )
    @step
    def traced_module(self, data: st.DataObject, multi: bool, twin: bool, kind: str) -> None:
        """A module comes, has a function traced, can't go before the link, and goes; a tracer of all functions keeps
        nobody. Its function may have the name of one of the kernel's.
        """
        name = INNER if twin else MODULE_FUNCTION
        body = FunctionText(name, "lea rax, [rdi + 5]\nret", f"u64 {name}(u64 a)")
        kernel = self.lab.kernel
        kernel.load_module(MODULE, AssemblyFunctions((body,), module=MODULE))
        address = kernel.kallsyms.address(f"{MODULE}:{name}")
        ran: list[tuple[int, int]] = []
        prog = self.lab.prog(
            f"{kind}_multi" if multi else kind,
            lambda context: ran.append((context.slots[0], context.ip)),
            name="of_module",
        )
        where = f"{MODULE}:{name}"
        attach = partial(self.lab.attach_multi, prog, [where]) if multi else partial(self.lab.attach, prog, where)
        made, link = self.all_or_nothing(attach, failure=self.draw_failure(data))
        if not made:
            link = attach()
        self.lab.unload(prog)
        assert self.lab.call(address, 4).value == 9
        assert ran == [(4, address)], f"in a call of {where}: {ran}"
        refused = 0
        try:
            kernel.modules.unload(MODULE)
        except KernelError as error:
            refused = error.errno
        assert refused == EWOULDBLOCK, "a module with a traced function was unloaded"
        link.detach()
        ftrace, ops = kernel.ftrace, None
        if self.traits.shares_sites and data.draw(st.booleans(), "a tracer of all meanwhile"):
            number, ops = self.new_tracer(())
            ftrace.register_ftrace_function(ops)
            self.reference.trace(number, list(self.reference.functions))
            assert self.lab.call(address, 4).value == 9
        kernel.modules.unload(MODULE)
        self.compare_calls((INNER,))
        if ops is not None:
            # Of all that there are now: once more, without the module.
            ftrace.unregister_ftrace_function(ops)
            ftrace.register_ftrace_function(ops)
            self.compare_calls((INNER,))
            ftrace.unregister_ftrace_function(ops)
            self.reference.trace(number, ())
            self.compare_calls((INNER,))

    @rule(data=st.data(), cpu=st.integers(0, CPUS - 1), cgroup=st.booleans(), result=st.sampled_from((0, 7, -22)))
    @step
    def hook(self, data: st.DataObject, cpu: int, cgroup: bool, result: int) -> None:
        """An LSM program on a function that nobody else uses calls it once more: nothing keeps it from running in
        itself. Where the function returns nothing, it runs behind it, and can't keep it from running.
        """
        functions = self.watched.functions
        free = [name for name in self.names if not self.reference.is_used(name) and name not in (OUTER, SLEEPER)]
        free = [name for name in free if functions[name].model.nr_regs <= self.traits.slots(self.release.trampoline)]
        free = [name for name in free if not functions[name].skips_registers or self.traits.struct_on_stack]
        if not free:
            return
        hooks = [name for name in free if not functions[name].model.ret_size]
        name = data.draw(st.sampled_from([*free, *hooks * 3]), "function")
        traced = functions[name]
        words = (1,) * traced.model.nr_regs
        registers, stack = traced.travel(words)
        originals: list[int] = []
        """How many there were when the program ran."""

        def run(context: ProgContext) -> int:
            originals.append(len(self.watched.happened))
            if len(originals) == 1:
                self.lab.call(traced.address, *registers, stack_args=stack, cpu=context.vcpu.index)
            return result

        kind = AttachType.LSM_CGROUP if cgroup else AttachType.LSM_MAC
        prog = self.lab.prog(str(kind), run, name="hook")
        link = self.lab.attach(prog, name)
        happened, value = self.watched.call(name, words, cpu)
        if not traced.model.ret_size:
            expected, wanted, runs = 2, 0, [1, 2]
        else:
            expected, wanted, runs = (0, result, [0, 0]) if result else (2, traced.result(words), [0, 0])
        assert originals == runs, f"an LSM program ran behind {originals} calls of {name}, not behind {runs}"
        self.same(name, happened, value, [Original(name)] * expected, wanted)
        assert not self.lab.programs.misses(prog), "an LSM program missed a run"
        link.detach()
        self.lab.unload(prog)

    @rule(
        data=st.data(),
        counts=st.booleans(),
        kinds=st.lists(st.sampled_from(("fentry", "fexit")), min_size=1, max_size=2),
    )
    @step
    def traced_program(self, data: st.DataObject, counts: bool, kinds: list[str]) -> None:
        """A BPF program is traced by others. Where tail calls can reach it, it finds their counter."""
        found: list[tuple[int, int]] = []

        def told(vcpu: Vcpu) -> None:
            found.append((vcpu.regs.rax, vcpu.regs.rdi))

        machine = self.lab.kernel.machine
        stub = machine.host_call("tramplab_testing_program", told)
        head = "endbr64\n" if self.release.entry.endbr else ""
        prog = self.lab.prog("fentry", f"{head}nop5\nmov r11, {stub:#x}\ncall r11\nmov eax, 33\nret", name="target")
        prog.tail_call_reachable = counts
        ran: list[tuple[str, int, int]] = []
        links: list[Any] = []
        for number, kind in enumerate(kinds):

            def run(context: Any, kind: str = kind, number: int = number) -> int:
                ran.append((kind, number, context.slots[0]))
                return 0

            tracer = self.lab.prog(kind, run, name=f"on_target{number}")
            made, link = self.all_or_nothing(partial(self.lab.attach, tracer, prog), failure=self.draw_failure(data))
            links.append(link if made else self.lab.attach(tracer, prog))
            self.lab.unload(tracer)
            machine.vcpus[0].regs.rax = _COUNTER
            found.clear()
            ran.clear()
            assert self.lab.call(prog.bpf_func, 0x1234).value == 33
            expected = [
                (kind, n, 0x1234)
                for where in ("fentry", "fexit")
                for n, kind in reversed([*enumerate(kinds[: number + 1])])
                if kind == where
            ]
            assert ran == expected, f"on a traced program {ran} ran, not {expected}"
            assert found[0][1] == 0x1234, "a traced program lost its context"
            assert not counts or found[0][0] == _COUNTER, (
                "the tail-call counter was lost on the way to a traced program"
            )
        for link in links:
            link.detach()
        self.lab.unload(prog)
        machine.remove_host_call(stub)
