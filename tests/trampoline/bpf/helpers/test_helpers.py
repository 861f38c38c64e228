"""The tables of helpers and kernel functions: every row can be read, and says what kernels say."""

import pytest
from kernel_releases import RELEASES

from trampoline.bpf.function_lists import marked, sections
from trampoline.bpf.helpers.availability import Caller, helper_for, is_known
from trampoline.bpf.helpers.kfuncs import Kf, kfuncs, may_call
from trampoline.bpf.helpers.protos import ArgFlag, HelperArg, Ret, helper_names, helper_number, protos
from trampoline.bpf.uapi import AttachType, ProgType


def test_numbers_are_the_interfaces():
    assert helper_number("map_lookup_elem") == 1
    assert helper_number("cgrp_storage_delete") == 211
    assert len(set(helper_names())) == len(helper_names()) == 212
    assert [is_known(release.helpers, 210) for release in RELEASES.values()] == [False, True, True, True]


@pytest.mark.parametrize("release", RELEASES)
def test_every_helper_that_is_available_has_a_number_and_a_prototype(release):
    for lines in sections("helpers/availability.txt").values():
        for word in (word for words in lines for word in words):
            entry, span = marked(word)
            helper, _, symbol = entry.partition("=")
            helper_number(helper)
            if RELEASES[release].version in span and symbol != "-":
                assert (symbol or helper) in protos(RELEASES[release].version)


def test_a_prototype_says_types_flags_and_the_kernels_function():
    proto = protos(RELEASES["6.12"].version)["ringbuf_submit"]
    assert (proto.function, proto.ret, proto.releases) == ("bpf_ringbuf_submit", Ret.VOID, 0)
    copy = protos(RELEASES["6.12"].version)["copy_from_user_task"]
    assert (copy.gpl_only, copy.sleeps, copy.args[3].type, copy.args[3].btf) == (
        True,
        True,
        HelperArg.BTF_ID,
        "task_struct",
    )
    older, newer = (protos(RELEASES[name].version)["get_func_ret"] for name in ("6.1", "6.12"))
    assert older.args[1].type is HelperArg.LONG
    assert newer.args[1].flags == ArgFlag.UNINIT | ArgFlag.WRITE | ArgFlag.ALIGNED


@pytest.mark.parametrize(
    ("release", "kind", "attach", "helper", "symbol"),
    [
        ("6.1", ProgType.KPROBE, AttachType.NONE, "get_func_ip", "get_func_ip_kprobe"),
        ("6.1", ProgType.KPROBE, AttachType.TRACE_KPROBE_MULTI, "get_func_ip", "get_func_ip_kprobe_multi"),
        ("6.12", ProgType.TRACING, AttachType.TRACE_FENTRY, "get_func_ip", "get_func_ip_tracing"),
        ("6.12", ProgType.TRACING, AttachType.TRACE_FENTRY, "task_storage_get", "task_storage_get_recur"),
        ("6.18", ProgType.TRACING, AttachType.TRACE_FENTRY, "task_storage_get", "task_storage_get_recur"),
        ("6.18", ProgType.LSM, AttachType.LSM_MAC, "task_storage_get", "task_storage_get"),
        ("7.2", ProgType.TRACING, AttachType.TRACE_FENTRY, "task_storage_get", "task_storage_get"),
        ("6.12", ProgType.TRACEPOINT, AttachType.NONE, "perf_event_output", "perf_event_output_tp"),
        ("6.12", ProgType.SOCKET_FILTER, AttachType.NONE, "get_smp_processor_id", "get_raw_cpu_id"),
        ("6.12", ProgType.SOCKET_FILTER, AttachType.NONE, "get_current_comm", None),
        ("6.18", ProgType.SOCKET_FILTER, AttachType.NONE, "get_current_comm", "get_current_comm"),
        ("6.18", ProgType.SOCKET_FILTER, AttachType.NONE, "task_storage_get", "task_storage_get_recur"),
        ("6.18", ProgType.TRACING, AttachType.TRACE_RAW_TP, "get_func_arg", None),
        ("7.2", ProgType.SOCKET_FILTER, AttachType.NONE, "get_current_comm", "get_current_comm"),
        ("6.12", ProgType.LSM, AttachType.LSM_MAC, "get_attach_cookie", "get_attach_cookie"),
        ("6.12", ProgType.TRACING, AttachType.TRACE_ITER, "get_attach_cookie", None),
        ("6.12", ProgType.TRACING, AttachType.TRACE_FENTRY, "seq_write", None),
        ("6.12", ProgType.SYSCALL, AttachType.NONE, "sys_close", "sys_close"),
    ],
)
def test_the_program_decides_which_function_a_helper_is(release, kind, attach, helper, symbol):
    proto = helper_for(Caller(RELEASES[release].helpers, kind, attach), helper_number(helper))
    assert (proto.symbol if proto else None) == symbol


def test_capabilities_decide_too():
    caller = Caller(RELEASES["6.12"].helpers, ProgType.SOCKET_FILTER, bpf=False, perfmon=False)
    assert helper_for(caller, helper_number("map_lookup_elem"))
    assert helper_for(caller, helper_number("loop")) is None


def test_kernel_functions_are_offered_by_their_sets():
    acquire = kfuncs(RELEASES["7.2"].version)["bpf_task_acquire"]
    assert acquire.has(Kf.ACQUIRE)
    offered = [
        may_call(RELEASES["7.2"].helpers, acquire, kind, 0)
        for kind in (ProgType.TRACING, ProgType.RAW_TRACEPOINT, ProgType.KPROBE)
    ]
    assert offered == [True, True, False]
    assert not may_call(RELEASES["6.12"].helpers, acquire, ProgType.RAW_TRACEPOINT, 0)
    assert "bpf_local_irq_save" not in kfuncs(RELEASES["6.12"].version)


def test_kernel_functions_of_6_18():
    newest = RELEASES["6.18"]
    known = kfuncs(newest.version)
    assert {"bpf_strstr", "bpf_task_from_vpid", "__bpf_trap"} <= known.keys()
    assert not {"bpf_strcasestr", "bpf_strncasecmp"} & known.keys()
    assert may_call(newest.helpers, known["bpf_key_put"], ProgType.SYSCALL, 0)
    older = kfuncs(RELEASES["6.12"].version)["bpf_key_put"]
    assert not may_call(RELEASES["6.12"].helpers, older, ProgType.SYSCALL, 0)
    session = known["bpf_session_cookie"]
    assert may_call(newest.helpers, session, ProgType.KPROBE, AttachType.TRACE_KPROBE_SESSION)
    assert not may_call(newest.helpers, session, ProgType.TRACING, AttachType.TRACE_FSESSION)
