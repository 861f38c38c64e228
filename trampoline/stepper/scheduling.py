"""Commands that are the scheduler's: who runs where, when a CPU sees patched text, which grace period ends."""

from trampoline.debug import Thread
from trampoline.errors import TrampolineError
from trampoline.stepper import inspect
from trampoline.stepper.answer import Answer
from trampoline.stepper.moves import number
from trampoline.stepper.session import Session
from trampoline.stepper.text import line


def thread(session: Session, rest: str) -> Answer:
    """``thread NUMBER``"""
    if not rest:
        return inspect.info(session, "threads")
    found = _thread(session, rest)
    session.debugger.select(found)
    return Answer(moved=True)


def preempt(session: Session, rest: str) -> Answer:
    """``preempt [THREAD]``"""
    found = _thread(session, rest)
    session.debugger.preempt(found)
    return Answer((line(f"{found.name} has lost cpu {found.cpu}"),), moved=True)


def wake(session: Session, rest: str) -> Answer:
    """``wake [THREAD]``"""
    found = _thread(session, rest)
    session.debugger.wake(found)
    return Answer((line(f"{found.name} is awake"),), moved=True)


def place(session: Session, rest: str) -> Answer:
    """``place CPU``"""
    found = session.debugger.thread
    session.debugger.place(found, number(rest, "which cpu", least=0))
    return Answer((line(f"{found.name} goes on on cpu {found.cpu}"),), moved=True)


def adopt(session: Session, rest: str) -> Answer:
    """``adopt [CPU]``"""
    cpu = number(rest, "which cpu", least=0) if rest else session.debugger.thread.cpu
    if cpu is None:
        raise TrampolineError("which cpu? this thread is in process context")
    session.debugger.adopt(cpu)
    return Answer((line(f"cpu {cpu} sees all text as it is"),), moved=True)


def grace(session: Session, rest: str) -> Answer:
    """``grace KIND``"""
    if not rest:
        raise TrampolineError(f"which kind? {', '.join(session.debugger.grace_periods) or 'none can end'}")
    begun = session.debugger.end_grace_period(rest)
    return Answer((line(f"thread {begun.number}: {begun.name}"),), moved=True)


def _thread(session: Session, rest: str) -> Thread:
    if not rest:
        return session.debugger.thread
    wanted = number(rest, "which thread", least=1)
    found = next((one for one in session.debugger.threads if one.number == wanted), None)
    if found is None:
        raise TrampolineError(f"no thread {wanted}")
    return found
