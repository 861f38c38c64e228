"""LSM hooks: allowed return values of their programs, and hooks with trusted arguments (kernel/bpf/bpf_lsm.c)."""

from trampoline.bpf.uapi import AttachType, ProgType
from trampoline.bpf.verifier.kernel_view import KernelView
from trampoline.bpf.verifier.state.env import Env

BOOL_HOOKS = frozenset({"bpf_lsm_xfrm_state_pol_flow_match", "bpf_lsm_audit_rule_known", "bpf_lsm_inode_xattr_skipcap"})
"""Hooks with a boolean result."""
MAX_ERRNO = 4095


def is_trusted_hook(kernel: KernelView, hook: str) -> bool:
    """True if a hook's arguments are trusted (``bpf_lsm_is_trusted``)."""
    return kernel.rules.calls.trusted and hook not in kernel.names("lsm_untrusted")


def returns_nothing(env: Env) -> bool:
    """True if the hook of an LSM program returns void."""
    return env.target is not None and env.target.func is not None and env.target.func.ret.type_id == 0


def retval_range(env: Env) -> tuple[int, int] | None:
    """Allowed return values of an LSM program's hook (``get_func_retval_range``); None: unrestricted."""
    program = env.program
    if program.prog_type != ProgType.LSM or program.attach != AttachType.LSM_MAC or env.target is None:
        return None
    if not env.kernel.rules.calls.lsm_ranges or returns_nothing(env):
        return None
    return (0, 1) if env.target.name in BOOL_HOOKS else (-MAX_ERRNO, 0)
