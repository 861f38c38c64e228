"""Contexts of iterators: argument types of each ``bpf_iter_*`` function, as registered by ``bpf_iter_reg_target``."""

from trampoline.bpf.verifier.rules.call_rules import CallRules
from trampoline.bpf.verifier.values.kinds import Flag, RegKind

_BTF = RegKind.PTR_TO_BTF_ID
_BUF = RegKind.PTR_TO_BUF
_NULL = Flag.PTR_MAYBE_NULL
_TRUSTED = Flag.PTR_TRUSTED | _NULL

# By offset in the context. PTR_TRUSTED applies from the first release that has it.
_FIELDS: dict[str, dict[int, tuple[RegKind, Flag]]] = {
    "bpf_iter_task": {8: (_BTF, _TRUSTED)},
    "bpf_iter_task_file": {8: (_BTF, _NULL), 24: (_BTF, _NULL)},
    "bpf_iter_task_vma": {8: (_BTF, _TRUSTED), 16: (_BTF, _NULL)},
    "bpf_iter_bpf_map": {8: (_BTF, _TRUSTED)},
    "bpf_iter_bpf_prog": {8: (_BTF, _NULL)},
    "bpf_iter_bpf_link": {8: (_BTF, _NULL)},
    "bpf_iter_bpf_map_elem": {16: (_BUF, _NULL | Flag.MEM_RDONLY), 24: (_BUF, _NULL)},
    "bpf_iter_bpf_sk_storage_map": {16: (_BTF, _NULL), 24: (_BUF, _NULL)},
    "bpf_iter_cgroup": {8: (_BTF, _TRUSTED)},
    "bpf_iter_netlink": {8: (_BTF, _NULL)},
    "bpf_iter_tcp": {8: (_BTF, _TRUSTED)},
    "bpf_iter_udp": {8: (_BTF, _TRUSTED)},
    "bpf_iter_unix": {8: (_BTF, _TRUSTED)},
    "bpf_iter_ipv6_route": {8: (_BTF, _NULL)},
    "bpf_iter_ksym": {8: (_BTF, _NULL)},
    "bpf_iter_sockmap": {16: (_BUF, _NULL | Flag.MEM_RDONLY), 24: (_BTF, _NULL)},
    "bpf_iter_kmem_cache": {8: (_BTF, _TRUSTED)},
    "bpf_iter_dmabuf": {8: (_BTF, _NULL)},
}


def iterator_field(rules: CallRules, target: str, off: int) -> tuple[RegKind, Flag] | None:
    """Type of the argument at ``off``, from the iterator's target; None: not registered."""
    found = _FIELDS.get(target, {}).get(off)
    if found is not None and not rules.trusted:
        return found[0], found[1] & ~Flag.PTR_TRUSTED
    return found
