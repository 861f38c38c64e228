"""Commands for scheduling: select, preempt and place threads, synchronise a CPU's text, end grace periods."""

from trampoline.bpf.errors import TrampolineError
from trampoline.tools.debugger import Thread
from trampoline.tools.debugger.terminal import inspection_commands
from trampoline.tools.debugger.terminal.command_result import CommandResult
from trampoline.tools.debugger.terminal.motion_commands import number
from trampoline.tools.debugger.terminal.session import StepperSession
from trampoline.tools.debugger.terminal.styled_text import line


def thread(session: StepperSession, rest: str) -> CommandResult:
    """``thread NUMBER``"""
    if not rest:
        return inspection_commands.info(session, "threads")
    found = _thread(session, rest)
    session.debugger.select(found)
    return CommandResult(moved=True)


def preempt(session: StepperSession, rest: str) -> CommandResult:
    """``preempt [THREAD]``"""
    found = _thread(session, rest)
    session.debugger.preempt(found)
    return CommandResult((line(f"{found.name} has lost cpu {found.cpu}"),), moved=True)


def wake(session: StepperSession, rest: str) -> CommandResult:
    """``wake [THREAD]``"""
    found = _thread(session, rest)
    session.debugger.wake(found)
    return CommandResult((line(f"{found.name} is awake"),), moved=True)


def place(session: StepperSession, rest: str) -> CommandResult:
    """``place CPU``"""
    found = session.debugger.thread
    session.debugger.place(found, number(rest, "which cpu", least=0))
    return CommandResult((line(f"{found.name} continues on cpu {found.cpu}"),), moved=True)


def adopt(session: StepperSession, rest: str) -> CommandResult:
    """``adopt [CPU]``"""
    cpu = number(rest, "which cpu", least=0) if rest else session.debugger.thread.cpu
    if cpu is None:
        raise TrampolineError("adopt: the thread is in process context; pass a CPU")
    session.debugger.adopt(cpu)
    return CommandResult((line(f"cpu {cpu} sees all text as it is"),), moved=True)


def grace(session: StepperSession, rest: str) -> CommandResult:
    """``grace KIND``"""
    if not rest:
        raise TrampolineError(f"grace: no kind; {', '.join(session.debugger.grace_periods) or 'none'} can end")
    begun = session.debugger.end_grace_period(rest)
    return CommandResult((line(f"thread {begun.number}: {begun.name}"),), moved=True)


def _thread(session: StepperSession, rest: str) -> Thread:
    if not rest:
        return session.debugger.thread
    wanted = number(rest, "which thread", least=1)
    found = next((one for one in session.debugger.threads if one.number == wanted), None)
    if found is None:
        raise TrampolineError(f"no thread {wanted}")
    return found
