"""Conditions of helper calls other than the program type (``bpf_func_proto.allowed``)."""

from trampoline.bpf.uapi import AttachType, ProgType
from trampoline.bpf.verifier.state.env import Env

D_PATH_FUNCTIONS = frozenset(
    {
        "dentry_open",
        "filp_close",
        "security_file_open",
        "security_file_permission",
        "security_inode_getattr",
        "security_path_truncate",
        "vfs_fallocate",
        "vfs_getattr",
        "vfs_truncate",
    }
)
"""``btf_allowlist_d_path``: functions from which bpf_d_path may be called."""
_OF_FUNCTIONS = (AttachType.TRACE_FENTRY, AttachType.TRACE_FEXIT, AttachType.TRACE_FSESSION)
_STORAGE_PREFIX = "bpf_sk_storage"


def is_allowed(env: Env, condition: str) -> bool:
    """True if the helper with this condition (``HelperProto.allowed``) may be called at the program's target."""
    if not condition:
        return True
    hook = env.target.name if env.target is not None else ""
    sleepable_hook = hook in env.kernel.names("lsm_sleepable")
    if condition == "sleepable_hooks":
        return sleepable_hook
    if condition == "d_path":
        if env.program.prog_type == ProgType.LSM:
            return sleepable_hook
        return env.program.attach == AttachType.TRACE_ITER or hook in D_PATH_FUNCTIONS
    # "sk_storage": not from the functions that implement storage.
    if env.target is not None and env.target.prog is not None:
        return False
    if env.program.attach in (AttachType.TRACE_ITER, AttachType.TRACE_RAW_TP):
        return True
    return env.program.attach in _OF_FUNCTIONS and not hook.startswith(_STORAGE_PREFIX)
