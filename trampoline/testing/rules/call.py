"""Calls from any context, and in tasks that sleep in the original or in a program."""

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, consumes, multiple, precondition, rule

from emu.machine.task import TaskState
from trampoline.testing.reference_model import EVERYTHING, Original
from trampoline.testing.rules.base import CPUS, SLEEPER, Linked, Sleeper, step
from trampoline.testing.rules.sleep import SleepSteps
from trampoline.testing.strategies import words

ASLEEP = Bundle("asleep")
MOST_SLEEPERS = 3


class CallSteps(SleepSteps):
    """Steps that call functions."""

    @rule(data=st.data(), cpu=st.integers(0, CPUS - 1))
    @step
    def call(self, data: st.DataObject, cpu: int) -> None:
        """Calls a function; programs may call traced functions in turn."""
        name = self.draw_function(data)
        self.compare_call(name, data.draw(words(self.watched.functions[name].model), "words"), cpu)

    @precondition(lambda self: len(self.sleepers) < MOST_SLEEPERS)
    @rule(target=ASLEEP, data=st.data(), cpu=st.integers(0, CPUS - 1))
    @step
    def call_that_sleeps(self, data: st.DataObject, cpu: int) -> Any:
        """Calls a function in a task, which sleeps in the original or in a program."""
        names = [name for name in self.names if not self.watched.functions[name].has_stack_words]
        name = data.draw(st.sampled_from([SLEEPER] * len(names) + names), "function")
        args = data.draw(words(self.watched.functions[name].model), "words")
        happened, task = self.watched.start(name, args, cpu)
        expected, state = self.reference.start(name, args, cpu)
        asleep = self.returned(name, task, happened, expected, state)
        if asleep is None:
            return multiple()
        self.sleepers.append((task, asleep))
        return self.sleepers[-1]

    @rule(data=st.data(), cpu=st.integers(0, CPUS - 1), multi=st.booleans(), sleepable=st.booleans())
    @step
    def sleep_through_changes(self, data: st.DataObject, cpu: int, multi: bool, sleepable: bool) -> None:
        """Detaches the program of a sleeping call and attaches others, which reuse freed memory."""
        first, names = self.draw_program(data, sleepable=sleepable, multi=multi), (SLEEPER,)
        if not self.may_change(names) or self.reference.refusals(first, names, multi=multi):
            return
        loaded = self.load(first, multi=multi, sleepable=sleepable)
        linked = self.come(data, loaded, names)
        self.release_program(loaded)
        args = self.watched.functions[SLEEPER].distinct()
        more: list[Linked] = []
        with self.others_wait(data):
            happened, task = self.watched.start(SLEEPER, args, cpu)
            asleep = self.returned(SLEEPER, task, happened, *self.reference.start(SLEEPER, args, cpu))
            self.go(linked)
            self.pass_time(data)
            for number in range(data.draw(st.integers(0, 3), "others")):
                other = self.load(self.draw_program(data, multi=multi), multi=multi, sleepable=False)
                if self.may_change(names) and not self.reference.refusals(other.program, names, multi=multi):
                    more.append(self.come(data, other, names))
                self.release_program(other)
                if number == 1 and more:
                    self.go(more.pop(0))
            while asleep is not None:
                self.pass_time(data)
                if asleep.in_program:
                    self.is_there(loaded)
                asleep = self.wake_up(task, asleep, CPUS - 1 - cpu)
        self.compare_calls(names)
        for linked in more:
            self.go(linked)
        self.compare_calls(names)

    @rule(data=st.data(), cpu=st.integers(0, CPUS - 1), multi=st.booleans(), newest=st.booleans(), both=st.booleans())
    @step
    def sleep_beside_another(self, data: st.DataObject, cpu: int, multi: bool, newest: bool, both: bool) -> None:
        """Detaches another program of the function, or both, while a call sleeps in a program: past events stay right,
        and each of the remaining programs runs at most once.
        """
        free = [
            name
            for name in self.names
            if not (self.reference.functions[name].attached or self.watched.functions[name].has_stack_words)
        ]
        if not free:
            return
        name = data.draw(st.sampled_from(free), "function")
        sleeps = data.draw(st.integers(1, 2), "sleeps")
        sleeper = replace(self.draw_program(data), sleeps=sleeps, reads=EVERYTHING, result=0, calls="")
        other = replace(self.draw_program(data), reads=EVERYTHING, result=0, calls="")
        pair = (sleeper, other) if newest else (other, sleeper)
        if any(self.reference.refusals(program, (name,), multi=multi) for program in pair):
            return
        links = {}
        for program in pair:
            loaded = self.load(program, multi=multi, sleepable=True)
            links[program.number] = self.watched.attach(program, loaded.prog, (name,), (program.number,), multi=multi)
            self.reference.attach(program, (name,), (program.number,), multi=multi)
        args = self.watched.functions[name].distinct()
        expected, value = self.reference.call(name, args, cpu)
        sleeps_in, self.watched.sleeps_in = self.watched.sleeps_in, lambda program, _: program.number == sleeper.number
        happened, task = self.watched.start(name, args, cpu)
        assert happened == expected[: len(happened)], f"in a call of {name} that sleeps: {happened}, not {expected}"
        gone = [other, sleeper] if both else [other]
        for program in gone:
            links[program.number].detach()
            self.reference.detach(program, (name,))
        for loaded in self.loaded[-2:]:
            if loaded.program in gone:
                self.lab.unload(loaded.prog)
        self.lab.kernel.rcu.settle()
        while task.state is TaskState.SLEEPING:
            happened += self.watched.wake(task, cpu)
        self.watched.sleeps_in = sleeps_in
        left = iter(expected)
        assert all(one in left for one in happened), f"in a call of {name}: {happened}, not part of {expected}"
        ran, wanted = (sum(isinstance(one, Original) for one in events) for events in (happened, expected))
        assert ran == wanted, f"in a call of {name}: {happened}, not part of {expected}"
        self.same(name, happened, self.watched.end(task), happened, value)
        if not both:
            links[sleeper.number].detach()
            self.reference.detach(sleeper, (name,))
            self.lab.unload(next(one for one in self.loaded[-2:] if one.program is sleeper).prog)
        del self.loaded[-2:]
        self.compare_calls((name,))

    @rule(target=ASLEEP, sleeper=consumes(ASLEEP), cpu=st.integers(0, CPUS - 1))
    @step
    def wake(self, sleeper: Sleeper, cpu: int) -> Any:
        """Wakes a sleeping call, perhaps on another CPU."""
        self.sleepers.remove(sleeper)
        task, asleep = sleeper
        again = self.wake_up(task, asleep, cpu)
        if again is None:
            return multiple()
        self.sleepers.append((task, again))
        return self.sleepers[-1]
