"""The tables of helpers and kernel functions: every row can be read, and says what kernels say."""

import pytest

from trampoline.bpf.helpers.availability import Caller, helper_for, is_known
from trampoline.bpf.helpers.data_file import RELEASES, sections, since
from trampoline.bpf.helpers.kfuncs import Kf, kfuncs, may_call
from trampoline.bpf.helpers.protos import ArgFlag, HelperArg, Ret, helper_names, helper_number, protos
from trampoline.bpf.uapi import AttachType, ProgType


def test_numbers_are_the_interfaces():
    assert helper_number("map_lookup_elem") == 1
    assert helper_number("cgrp_storage_delete") == 211
    assert len(set(helper_names())) == len(helper_names()) == 212
    assert [is_known(release, 210) for release in RELEASES] == [False, True, True]


@pytest.mark.parametrize("release", RELEASES)
def test_every_helper_that_is_available_has_a_number_and_a_prototype(release):
    for lines in sections("availability.txt").values():
        for word in (word for words in lines for word in words):
            entry, held = since(word)
            helper, _, symbol = entry.partition("=")
            helper_number(helper)
            if RELEASES.index(release) in held and symbol != "-":
                assert (symbol or helper) in protos(release)


def test_a_prototype_says_types_flags_and_the_kernels_function():
    proto = protos("6.12")["ringbuf_submit"]
    assert (proto.function, proto.ret, proto.releases) == ("bpf_ringbuf_submit", Ret.VOID, 0)
    copy = protos("6.12")["copy_from_user_task"]
    assert (copy.gpl_only, copy.sleeps, copy.args[3].type, copy.args[3].btf) == (
        True,
        True,
        HelperArg.BTF_ID,
        "task_struct",
    )
    assert protos("6.1")["get_func_ret"].args[1].type is HelperArg.LONG
    assert protos("6.12")["get_func_ret"].args[1].flags == ArgFlag.UNINIT | ArgFlag.WRITE | ArgFlag.ALIGNED


@pytest.mark.parametrize(
    ("release", "kind", "attach", "helper", "symbol"),
    [
        ("6.1", ProgType.KPROBE, AttachType.NONE, "get_func_ip", "get_func_ip_kprobe"),
        ("6.1", ProgType.KPROBE, AttachType.TRACE_KPROBE_MULTI, "get_func_ip", "get_func_ip_kprobe_multi"),
        ("6.12", ProgType.TRACING, AttachType.TRACE_FENTRY, "get_func_ip", "get_func_ip_tracing"),
        ("6.12", ProgType.TRACING, AttachType.TRACE_FENTRY, "task_storage_get", "task_storage_get_recur"),
        ("7.2", ProgType.TRACING, AttachType.TRACE_FENTRY, "task_storage_get", "task_storage_get"),
        ("6.12", ProgType.TRACEPOINT, AttachType.NONE, "perf_event_output", "perf_event_output_tp"),
        ("6.12", ProgType.SOCKET_FILTER, AttachType.NONE, "get_smp_processor_id", "get_raw_cpu_id"),
        ("6.12", ProgType.SOCKET_FILTER, AttachType.NONE, "get_current_comm", None),
        ("7.2", ProgType.SOCKET_FILTER, AttachType.NONE, "get_current_comm", "get_current_comm"),
        ("6.12", ProgType.LSM, AttachType.LSM_MAC, "get_attach_cookie", "get_attach_cookie"),
        ("6.12", ProgType.TRACING, AttachType.TRACE_ITER, "get_attach_cookie", None),
        ("6.12", ProgType.TRACING, AttachType.TRACE_FENTRY, "seq_write", None),
        ("6.12", ProgType.SYSCALL, AttachType.NONE, "sys_close", "sys_close"),
    ],
)
def test_the_program_decides_which_function_a_helper_is(release, kind, attach, helper, symbol):
    proto = helper_for(Caller(release, kind, attach), helper_number(helper))
    assert (proto.symbol if proto else None) == symbol


def test_capabilities_decide_too():
    caller = Caller("6.12", ProgType.SOCKET_FILTER, bpf=False, perfmon=False)
    assert helper_for(caller, helper_number("map_lookup_elem"))
    assert helper_for(caller, helper_number("loop")) is None


def test_kernel_functions_are_offered_by_their_sets():
    acquire = kfuncs("7.2")["bpf_task_acquire"]
    assert acquire.has(Kf.ACQUIRE)
    offered = [
        may_call("7.2", acquire, kind, 0) for kind in (ProgType.TRACING, ProgType.RAW_TRACEPOINT, ProgType.KPROBE)
    ]
    assert offered == [True, True, False]
    assert not may_call("6.12", acquire, ProgType.RAW_TRACEPOINT, 0)
    assert "bpf_local_irq_save" not in kfuncs("6.12")
