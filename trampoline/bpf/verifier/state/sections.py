"""Sections of a path in which it may not sleep, or in which RCU protects its pointers."""

from trampoline.bpf.verifier.state.env import Env


def may_sleep(env: Env) -> bool:
    """``in_sleepable``: the program, or the callback being checked, is sleepable."""
    return env.program.sleepable or env.state.in_sleepable


def in_rcu_section(env: Env) -> bool:
    """``in_rcu_cs``: RCU protects pointers: in a read section, under a lock, or in a program that cannot sleep."""
    return bool(env.state.rcu_read_locks or env.state.active_locks) or not may_sleep(env)


def atomic_section(env: Env) -> str:
    """The section that forbids sleeping, as the log names it; empty if none."""
    if env.state.rcu_read_locks:
        return "rcu_read_lock region"
    if env.state.preempt_disabled:
        return "non-preemptible region"
    if any(ref.kind == "irq" for ref in env.state.refs):
        return "IRQ-disabled region"
    if env.state.active_locks:
        return "lock region"
    return ""
