"""percpu_ref_get() and percpu_ref_put() (include/linux/percpu-refcount.h): per-CPU counts until the ref is killed."""

from emu.kernel.config import Config
from emu.kernel.routines.rcu import rcu_read_lock, rcu_read_unlock
from emu.kernel.routines.routine import Fragment, Routine, body
from emu.kernel.structs import PERCPU_REF_ATOMIC_DEAD

_COUNT = "percpu_ref_data.count"


def percpu_ref_get(config: Config, base: str, ref: str, label: str) -> Fragment:
    """Take a reference. ``ref``: the ref's path in the structure that register ``base`` points to. Clobbers rax."""
    killed = f"""
    lock inc qword ptr [rax + {_COUNT}]
"""
    return _counted("inc", killed, config, base, ref, label)


def percpu_ref_put(config: Config, base: str, ref: str, label: str) -> Fragment:
    """Drop a reference; the last one of a killed ref calls ``percpu_ref_data.release``.

    Clobbers rax and, in that case, all caller-saved registers.
    """
    killed = f"""
    lock dec qword ptr [rax + {_COUNT}]
    jne {label}_counted
    mov rax, qword ptr [{base} + {ref}.data]       ; the last one out
    lea rdi, [{base} + {ref}]
    call qword ptr [rax + percpu_ref_data.release]
"""
    return _counted("dec", killed, config, base, ref, label)


def _counted(op: str, killed: str, config: Config, base: str, ref: str, label: str) -> Fragment:
    """``op`` on this CPU's count; ``killed``, with percpu_ref_data in rax, once the ref counts atomically."""
    lock, unlock = rcu_read_lock(config), rcu_read_unlock(config, label)
    return Fragment(
        body(
            lock.text,
            f"""
    mov rax, qword ptr [{base} + {ref}.percpu_count_ptr]
    test al, {PERCPU_REF_ATOMIC_DEAD}
    jne {label}_killed
    {op} qword ptr gs:[rax]
{label}_counted:
""",
            unlock.text,
        ),
        body(
            f"""
{label}_killed:
    mov rax, qword ptr [{base} + {ref}.data]
""",
            killed,
            f"""
    jmp {label}_counted
""",
            unlock.cold,
        ),
    )


def routines(config: Config, *, return_thunk: bool) -> list[Routine]:
    """``percpu_ref_release``, the value of ``percpu_ref_data.release``: a host call, the ref in rdi."""
    return [Routine("percpu_ref_release", host_call=True)]
