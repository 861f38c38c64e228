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


def type_name(kind: RegKind, flags: Flag, ringbuf_word: str = "ringbuf_") -> str:
    """``rdonly_mem_or_null``: a register's type with its flags. ``ringbuf_word``: prefix of a ring buffer's memory."""
    prefix = "".join(name for flag, name in _PREFIXES if flags & flag)
    prefix = prefix.replace("ringbuf_", ringbuf_word)
    postfix = ""
    if flags & Flag.PTR_MAYBE_NULL:
        postfix = "or_null_" if kind is RegKind.PTR_TO_BTF_ID else "_or_null"
    return f"{prefix}{kind.value}{postfix}"
