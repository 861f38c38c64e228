"""Names of register types in the kernel's log (``reg_type_str``)."""

from trampoline.bpf.verifier.values.kinds import Flag, RegKind

_PREFIXES = (
    (Flag.MEM_RDONLY, "rdonly_"),
    (Flag.MEM_RINGBUF, "ringbuf_"),
    (Flag.MEM_USER, "user_"),
    (Flag.MEM_PERCPU, "percpu_"),
    (Flag.MEM_RCU, "rcu_"),
    (Flag.PTR_UNTRUSTED, "untrusted_"),
    (Flag.PTR_TRUSTED, "trusted_"),
)


def type_name(release: str, kind: RegKind, flags: Flag = Flag.NONE) -> str:
    """``rdonly_mem_or_null``: a register's type with its flags."""
    prefix = "".join(name for flag, name in _PREFIXES if flags & flag)
    if release == "6.1":
        # At that time MEM_ALLOC meant only the memory of ring buffers.
        prefix = prefix.replace("ringbuf_", "alloc_")
    postfix = ""
    if flags & Flag.PTR_MAYBE_NULL:
        postfix = "or_null_" if kind is RegKind.PTR_TO_BTF_ID else "_or_null"
    return f"{prefix}{kind.value}{postfix}"
