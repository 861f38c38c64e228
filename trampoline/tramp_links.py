"""What an attach type means for a trampoline: its kind, the order of programs, flags, enter and exit functions.

The choices of ``bpf_trampoline_update``, ``bpf_attach_type_to_tramp`` and ``bpf_trampoline_enter`` in
kernel/bpf/trampoline.c.
"""

import enum
from collections.abc import Iterable
from functools import cache
from typing import Protocol

from trampoline.bpf.uapi import AttachType
from trampoline.image.generator import ProgCall, TrampFlag, TrampLinks, uses_jmp
from trampoline.rules import TrampolineRules


class TrampProgType(enum.Enum):
    """``enum bpf_tramp_prog_type``: the list of a trampoline that a program is in."""

    FENTRY = 0
    FEXIT = 1
    MODIFY_RETURN = 2
    FSESSION = 5

    @property
    def weight(self) -> int:
        """How many links it counts as: an fsession program stands in two lists."""
        return 2 if self is TrampProgType.FSESSION else 1


_KINDS = {
    AttachType.TRACE_FENTRY: TrampProgType.FENTRY,
    AttachType.TRACE_FENTRY_MULTI: TrampProgType.FENTRY,
    AttachType.TRACE_FEXIT: TrampProgType.FEXIT,
    AttachType.TRACE_FEXIT_MULTI: TrampProgType.FEXIT,
    AttachType.MODIFY_RETURN: TrampProgType.MODIFY_RETURN,
    AttachType.MODIFY_RETURN_MULTI: TrampProgType.MODIFY_RETURN,
    AttachType.TRACE_FSESSION: TrampProgType.FSESSION,
    AttachType.TRACE_FSESSION_MULTI: TrampProgType.FSESSION,
}


class TracedSite(Protocol):
    """What is known of a traced function."""

    @property
    def returns_void(self) -> bool:
        """Whether there is no return value."""
        ...


def kind_of(attach: AttachType, function: TracedSite) -> TrampProgType:
    """The kind that programs of an attach type have on a function (``bpf_attach_type_to_tramp``)."""
    kind = _KINDS.get(attach)
    if kind is None:
        # LSM programs: a void hook has no return value to modify.
        return TrampProgType.FEXIT if function.returns_void else TrampProgType.MODIFY_RETURN
    return kind


def enter_exit(attach: AttachType, *, sleepable: bool) -> tuple[str, str]:
    """Names of the functions around a program (``bpf_trampoline_enter``, ``bpf_trampoline_exit``)."""
    if attach is AttachType.LSM_CGROUP:
        suffix = "_lsm_cgroup"
    else:
        # bpf_prog_check_recur(): BPF_LSM_MAC hooks may recurse.
        recur = "" if attach is AttachType.LSM_MAC else "_recur"
        suffix = ("_sleepable" if sleepable else "") + recur
    return f"__bpf_prog_enter{suffix}", f"__bpf_prog_exit{suffix}"


def links_of(attached: Iterable[tuple[TrampProgType, ProgCall]]) -> TrampLinks:
    """The lists of a trampoline from its programs in attach order: each list runs newest first (``hlist_add_head``)."""
    lists: dict[TrampProgType, list[ProgCall]] = {
        TrampProgType.FENTRY: [],
        TrampProgType.MODIFY_RETURN: [],
        TrampProgType.FEXIT: [],
    }
    for kind, call in attached:
        for where in (TrampProgType.FENTRY, TrampProgType.FEXIT) if kind is TrampProgType.FSESSION else (kind,):
            lists[where].insert(0, call)
    return TrampLinks(
        tuple(lists[TrampProgType.FENTRY]), tuple(lists[TrampProgType.MODIFY_RETURN]), tuple(lists[TrampProgType.FEXIT])
    )


@cache
def flags_of(
    rules: TrampolineRules, *, calls_original: bool, uses_func_ip: bool, kept: TrampFlag | int = 0
) -> TrampFlag:
    """The trampoline flags that ``bpf_trampoline_update`` sets; ``kept`` survives (SHARE_IPMODIFY, TAIL_CALL_CTX)."""
    flags = TrampFlag(kept) & (TrampFlag.SHARE_IPMODIFY | TrampFlag.TAIL_CALL_CTX)
    if calls_original:
        flags |= TrampFlag.CALL_ORIG | TrampFlag.SKIP_FRAME
    else:
        flags |= TrampFlag.RESTORE_REGS
    if uses_func_ip:
        flags |= TrampFlag.IP_ARG
    if flags & TrampFlag.CALL_ORIG and flags & TrampFlag.SHARE_IPMODIFY:
        flags |= TrampFlag.ORIG_STACK
    elif uses_jmp(rules, flags & ~TrampFlag.SKIP_FRAME):
        flags &= ~TrampFlag.SKIP_FRAME
    return flags
