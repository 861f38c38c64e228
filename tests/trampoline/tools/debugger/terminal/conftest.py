from contextlib import ExitStack
from functools import partial

import pytest

from trampoline.lab import Workload, open_workload
from trampoline.tools.debugger import BpfDebugger
from trampoline.tools.debugger.terminal.command_table import perform
from trampoline.tools.debugger.terminal.session import StepperSession
from trampoline.tools.debugger.terminal.styled_text import plain


@pytest.fixture
def opened():
    """Opens a session that a stack closes: a target's name, and the other fields of Workload."""

    def make(stack, target="bpf_fentry_test1", programs=("fentry", "fexit"), **options):
        ready = stack.enter_context(open_workload(Workload(target, programs=programs, **options)))
        debugger = stack.enter_context(BpfDebugger(ready.lab))
        ready.begin(debugger)
        return StepperSession(debugger, ready.title)

    return make


@pytest.fixture
def open_session(opened):
    """Opens sessions for the time of the test."""
    with ExitStack() as stack:
        yield partial(opened, stack)


@pytest.fixture
def session(open_session):
    return open_session()


@pytest.fixture
def do(session):
    """Performs a command; its answer as text."""

    def command(text):
        return "\n".join(map(plain, perform(session, text).lines))

    return command
