"""Calls: from anywhere, and in tasks that sleep in the original or in a program."""

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, consumes, multiple, precondition, rule

from trampoline.testing.steps import CPUS, SLEEPER, Sleeper, Steps, step
from trampoline.testing.strategies import words

ASLEEP = Bundle("asleep")
MOST_SLEEPERS = 3


class CallSteps(Steps):
    """Calls."""

    @rule(data=st.data(), cpu=st.integers(0, CPUS - 1))
    @step
    def call(self, data: st.DataObject, cpu: int) -> None:
        """A call from anywhere; programs may call traced functions in turn."""
        name = self.draw_function(data)
        self.compare_call(name, data.draw(words(self.watched.functions[name].model), "words"), cpu)

    @precondition(lambda self: len(self.sleepers) < MOST_SLEEPERS)
    @rule(target=ASLEEP, data=st.data(), cpu=st.integers(0, CPUS - 1))
    @step
    def call_that_sleeps(self, data: st.DataObject, cpu: int) -> Any:
        """A task calls a function; it sleeps in the original, or in a program."""
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

    @rule(target=ASLEEP, sleeper=consumes(ASLEEP), cpu=st.integers(0, CPUS - 1))
    @step
    def wake(self, sleeper: Sleeper, cpu: int) -> Any:
        """It goes on, perhaps on another CPU."""
        self.sleepers.remove(sleeper)
        task, asleep = sleeper
        again = self.wake_up(task, asleep, cpu)
        if again is None:
            return multiple()
        self.sleepers.append((task, again))
        return self.sleepers[-1]
