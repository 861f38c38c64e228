"""Fields of map values that only helpers may access: locks, timers, kernel pointers."""

from trampoline.bpf.verifier.access.value_regions import special_fields
from trampoline.bpf.verifier.state import refs
from trampoline.bpf.verifier.state.env import Env
from trampoline.bpf.verifier.state.state import Reg
from trampoline.bpf.verifier.values.kinds import Flag


def _at_field(env: Env, regno: int, what: str, name: str) -> Reg:
    """Check that the register points to this field of a map value, at a constant offset; returns the register."""
    reg = env.reg(regno)
    if not reg.var.is_const:
        env.invalid(f"R{regno} doesn't have constant offset. {what} has to be at the constant offset")
    spec = reg.map
    if spec is None:
        env.unsupported("objects that programs allocate")
    if not spec.value_type or env.program.btf is None:
        env.invalid(f"map '{spec.name}' has to have BTF in order to use {what}")
    places = [off for off, _, found in special_fields(env.program.btf, spec) if found == name]
    if not places:
        env.invalid(f"map '{spec.name}' has no valid {what}")
    off = reg.off + reg.var.signed
    if off not in places:
        env.invalid(f"off {off} doesn't point to 'struct {what}' that is at {places[0]}")
    return reg


def use_spin_lock(env: Env, regno: int, *, lock: bool) -> None:
    """``process_spin_lock``: take a lock, or release it."""
    reg = _at_field(env, regno, "bpf_spin_lock", "bpf_spin_lock")
    held = [ref for ref in env.state.refs if ref.kind == "lock"]
    if lock:
        if held:
            env.invalid("Locking two bpf_spin_locks are not allowed")
        refs.acquire(env, kind="lock", pointer=_identity(env, reg))
        return
    if not held:
        env.invalid("bpf_spin_unlock without taking a lock")
    if held[-1].pointer != _identity(env, reg):
        env.invalid("bpf_spin_unlock of different lock")
    refs.forget(env, held[-1].id)


def _identity(env: Env, reg: Reg) -> int:
    """Identity of the map value or object that contains a lock."""
    number = next(n for n, spec in enumerate(env.maps) if spec is reg.map) if reg.map in env.maps else len(env.maps)
    return reg.id << 16 | number


def check_timer(env: Env, regno: int) -> None:
    """``process_timer_func``."""
    _at_field(env, regno, "bpf_timer", "bpf_timer")


def check_kptr(env: Env, regno: int) -> None:
    """``process_kptr_func``."""
    if env.reg(regno).has(Flag.MEM_ALLOC):
        env.unsupported("objects that programs allocate")
    _at_field(env, regno, "kptr", "kptr")
    env.unsupported("kernel pointers in map values")
