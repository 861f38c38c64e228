"""Tasks that sleep in a program or an original while links change and grace periods start and end."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from hypothesis import strategies as st
from hypothesis.stateful import rule

from emu.kernel.rcu import RcuFlavour
from trampoline.testing.reference_model import EVERYTHING
from trampoline.testing.rules.base import CPUS, INNER, LabSteps, Linked, LoadedProgram, step

_FLAVOURS = (RcuFlavour.RCU, RcuFlavour.RCU_TASKS, RcuFlavour.RCU_TASKS_TRACE)


class SleepSteps(LabSteps):
    """Steps with sleeping tasks."""

    @contextmanager
    def others_wait(self, data: st.DataObject) -> Iterator[None]:
        """Perhaps starts unrelated grace periods first: they do not end by themselves in the block, and do not wait for
        readers that start in it.
        """
        rcu = self.lab.kernel.rcu
        automatic = rcu.automatic
        if data.draw(st.booleans(), "others wait"):
            rcu.automatic = False
            for flavour in _FLAVOURS:
                rcu.call(flavour, lambda: None)
        yield
        rcu.automatic = automatic
        rcu.settle()

    def pass_time(self, data: st.DataObject) -> None:
        """Ends the grace periods that can end, and those that their callbacks start."""
        for _ in range(data.draw(st.integers(0, 3), "grace periods")):
            self.lab.kernel.rcu.poll()

    def is_there(self, loaded: LoadedProgram) -> None:
        """Checks that a program in which a task sleeps still exists."""
        there = loaded.prog in self.lab.programs.loaded.values()
        assert there, f"program {loaded.program.number}, in which a task sleeps, is gone"

    @rule(data=st.data(), cpu=st.integers(0, CPUS - 1), multi=st.booleans(), toggles=st.booleans())
    @step
    def sleep_around_another(self, data: st.DataObject, cpu: int, multi: bool, toggles: bool) -> None:
        """Detaches, in any order, a sleeping program and a program on a function that it calls."""
        free = [
            name
            for name in self.names
            if name != INNER
            and not (self.reference.functions[name].attached or self.watched.functions[name].has_stack_words)
        ]
        if not free or not self.may_change((INNER,)):
            return
        name = data.draw(st.sampled_from(free), "function")
        sleeps = data.draw(st.integers(1, 2), "sleeps")
        inner = replace(self.draw_program(data), calls="")
        outer = replace(self.draw_program(data), sleeps=sleeps, calls=INNER, reads=EVERYTHING)
        came: list[Linked] = []
        if any(self.reference.refusals(one, (at,), multi=multi) for one, at in ((inner, INNER), (outer, name))):
            return
        for program, where in ((inner, INNER), (outer, name)):
            loaded = self.load(program, multi=multi, sleepable=True)
            came.append(self.come(data, loaded, (where,)))
            self.release_program(loaded)
        args = self.watched.functions[name].distinct()
        with self.others_wait(data):
            happened, task = self.watched.start(name, args, cpu)
            asleep = self.returned(name, task, happened, *self.reference.start(name, args, cpu))
            for linked in data.draw(st.permutations(came), "go in this order"):
                self.go(linked)
            if toggles:
                on = not self.reference.timed
                self.lab.stats(enabled=on)
                self.reference.time(on=on)
            while asleep is not None:
                self.pass_time(data)
                if self.reference.functions[name].inside:
                    self.is_there(came[-1].loaded)
                asleep = self.wake_up(task, asleep, CPUS - 1 - cpu)
        self.compare_calls((name, INNER))
