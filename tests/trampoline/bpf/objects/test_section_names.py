"""Names of sections of programs."""

import pytest

from trampoline.bpf.errors import ObjectError
from trampoline.bpf.objects.section_names import section_kind, target_prefix
from trampoline.bpf.uapi import AttachType, ProgFlag, ProgType


@pytest.mark.parametrize(
    ("name", "prog_type", "attach", "sleepable", "target"),
    [
        ("fentry/vfs_read", ProgType.TRACING, AttachType.TRACE_FENTRY, False, "vfs_read"),
        ("fentry", ProgType.TRACING, AttachType.TRACE_FENTRY, False, ""),
        ("fentry.s/f", ProgType.TRACING, AttachType.TRACE_FENTRY, True, "f"),
        ("fexit.s/f", ProgType.TRACING, AttachType.TRACE_FEXIT, True, "f"),
        ("fmod_ret/f", ProgType.TRACING, AttachType.MODIFY_RETURN, False, "f"),
        ("fsession.s/f", ProgType.TRACING, AttachType.TRACE_FSESSION, True, "f"),
        ("fentry.multi/bpf_fentry_test*", ProgType.TRACING, AttachType.TRACE_FENTRY_MULTI, False, "bpf_fentry_test*"),
        ("fexit.multi.s/mod:f", ProgType.TRACING, AttachType.TRACE_FEXIT_MULTI, True, "mod:f"),
        ("fsession.multi", ProgType.TRACING, AttachType.TRACE_FSESSION_MULTI, False, ""),
        ("tp_btf/sched_switch", ProgType.TRACING, AttachType.TRACE_RAW_TP, False, "sched_switch"),
        ("iter.s/task", ProgType.TRACING, AttachType.TRACE_ITER, True, "task"),
        ("lsm.s/file_open", ProgType.LSM, AttachType.LSM_MAC, True, "file_open"),
        ("lsm_cgroup/file_open", ProgType.LSM, AttachType.LSM_CGROUP, False, "file_open"),
        ("raw_tp/sched_switch", ProgType.RAW_TRACEPOINT, AttachType.NONE, False, "sched_switch"),
        ("raw_tracepoint.w/x", ProgType.RAW_TRACEPOINT_WRITABLE, AttachType.NONE, False, "x"),
        ("tp/syscalls/sys_enter_read", ProgType.TRACEPOINT, AttachType.NONE, False, "syscalls/sys_enter_read"),
        ("kprobe/f+0x10", ProgType.KPROBE, AttachType.NONE, False, "f+0x10"),
        ("kretprobe.multi/f*", ProgType.KPROBE, AttachType.TRACE_KPROBE_MULTI, False, "f*"),
        ("kprobe.session/f", ProgType.KPROBE, AttachType.TRACE_KPROBE_SESSION, False, "f"),
        ("freplace/f", ProgType.EXT, AttachType.NONE, False, "f"),
        ("syscall", ProgType.SYSCALL, AttachType.NONE, True, ""),
        ("socket", ProgType.SOCKET_FILTER, AttachType.NONE, False, ""),
    ],
)
def test_kinds(name, prog_type, attach, sleepable, target):
    kind = section_kind(name)
    assert (kind.prog_type, kind.attach, kind.target) == (prog_type, attach, target)
    assert bool(kind.flags & ProgFlag.SLEEPABLE) == sleepable
    assert kind.autoload
    assert not section_kind("?" + name).autoload


@pytest.mark.parametrize(
    "name", ["fentri/f", "fentry_f", "socket1", "syscall/x", "fmod_ret.x/f", "", "?", "/f", "kprobe.s/f"]
)
def test_unknown_names_are_refused(name):
    with pytest.raises(ObjectError) as caught:
        section_kind(name)
    assert caught.value.section == name


def test_names_in_the_kernels_types():
    assert target_prefix(AttachType.TRACE_FENTRY) == ""
    assert target_prefix(AttachType.LSM_MAC) == "bpf_lsm_"
    assert target_prefix(AttachType.TRACE_RAW_TP) == "btf_trace_"
    assert target_prefix(AttachType.TRACE_ITER) == "bpf_iter_"
    assert target_prefix(AttachType.TRACE_FENTRY_MULTI) is None
