"""Calls of kernel functions by BTF id: programs as text, and what kernels say to them."""

from errno import EACCES, EINVAL

import pytest

from mini_kernel import answer, verify

TASK = "call 158 / r1 = r0 / "
ACQUIRE = TASK + "call kfunc $bpf_task_acquire / "
LOCK, UNLOCK = "call kfunc $bpf_rcu_read_lock / ", "call kfunc $bpf_rcu_read_unlock / "
ITER = "r1 = r10 / r1 += -8 / "
NEW = ITER + "r2 = 0 / r3 = 4 / call kfunc $bpf_iter_num_new / "
NEXT = ITER + "call kfunc $bpf_iter_num_next / "
DESTROY = ITER + "call kfunc $bpf_iter_num_destroy / "
FLAG = "r1 = r10 / r1 += -8 / "
SAVE, RESTORE = FLAG + "call kfunc $bpf_local_irq_save / ", FLAG + "call kfunc $bpf_local_irq_restore / "
END = "r0 = 0 / exit"

NEWER = [
    ("call kfunc $reads_file / " + END, "fentry", EACCES, "calling kernel function reads_file is not allowed"),
    ("call kfunc $file / " + END, "fentry", EINVAL, "is not a function"),
    ("call kfunc 0 / " + END, "fentry", EINVAL, "not eliminated"),
    ("call kfunc $bpf_list_pop_front / " + END, "fentry", -1, "calls of bpf_list_pop_front"),
    # Trust
    (ACQUIRE + "if r0 == 0 goto +2 / r1 = r0 / call kfunc $bpf_task_release / " + END, "fentry", 0, ""),
    (ACQUIRE + END, "fentry", EINVAL, "nreleased reference"),
    ("r1 = 0 / call kfunc $bpf_task_acquire / " + END, "fentry", EACCES, "Possibly NULL pointer passed to trusted"),
    ("r1 = *(u64 *)(r1 +0) / call kfunc $bpf_task_acquire / " + END, "fentry", EINVAL, "R1 must be a rcu pointer"),
    (TASK + "call kfunc $bpf_task_release / " + END, "fentry", EINVAL, "release k"),
    (
        TASK + "r1 += 8 / call kfunc $bpf_task_acquire / " + END,
        "fentry",
        EINVAL,
        "expected pointer to STRUCT task_struct",
    ),
    ("r1 = 0 / call kfunc $bpf_task_acquire / " + END, "kprobe", EACCES, "is not allowed"),
    # RCU sections and pointers
    (LOCK + UNLOCK + END, "fentry", 0, ""),
    (UNLOCK + END, "fentry", EINVAL, "unmatched rcu read unlock"),
    (LOCK + END, "fentry", EINVAL, ""),
    ("call kfunc $bpf_preempt_disable / call kfunc $bpf_preempt_enable / " + END, "kprobe", 0, ""),
    ("call kfunc $bpf_preempt_enable / " + END, "kprobe", EINVAL, "unmatched attempt to enable preemption"),
    ("call kfunc $bpf_preempt_disable / " + END, "kprobe", EINVAL, ""),
    # Iterators
    (NEW + NEXT + "if r0 == 0 goto +2 / r2 = *(u32 *)(r0 +0) / goto -6 / " + DESTROY + END, "fentry", 0, ""),
    (NEW + NEXT + "r2 = *(u32 *)(r0 +0) / " + DESTROY + END, "fentry", EACCES, "R0 invalid mem access 'scalar'"),
    (NEXT + END, "fentry", EINVAL, "expected an initialized iter_num as"),
    (NEW + NEW + END, "fentry", EINVAL, "expected uninitialized iter_num as"),
    (NEW + END, "fentry", EINVAL, "nreleased reference"),
    (NEW + "*(u64 *)(r10 -8) = 0 / " + DESTROY + END, "fentry", EINVAL, "expected an initialized iter_num"),
    (
        "r6 = 0 / " + NEW + NEXT + "if r0 == 0 goto +3 / r1 = *(u32 *)(r0 +0) / r6 += r1 / goto -7 / " + DESTROY + END,
        "fentry",
        0,
        "",
    ),
    # Exceptions and casts
    ("r1 = 0 / call kfunc $bpf_throw / exit", "fentry", 0, ""),
    ("r1 = 7 / call kfunc $bpf_throw / exit", "fentry", EINVAL, "should have been in [0, 0]"),
    ("call F / " + END + " / F: / r1 = 7 / call kfunc $bpf_throw / exit", "fentry", EINVAL, "should have been in"),
    ("call F / " + END + " / F: / r1 = 0 / call kfunc $bpf_throw / exit", "fentry", 0, ""),
    ("r1 = 7 / call kfunc $bpf_throw / exit", "kprobe", EACCES, "is not allowed"),
    ("r2 = $file / call kfunc $bpf_rdonly_cast / r0 = *(u32 *)(r0 +0) / " + END, "fentry", 0, ""),
    ("r2 = $task_struct / call kfunc $bpf_rdonly_cast / r0 = *(u64 *)(r0 +20) / " + END, "fentry", EACCES, "beyond"),
    ("r2 = 1 / call kfunc $bpf_rdonly_cast / " + END, "fentry", EINVAL, "must be of a struct"),
    ("r2 = *(u64 *)(r1 +8) / call kfunc $bpf_rdonly_cast / " + END, "fentry", EINVAL, "R2 must be a known constant"),
    ("call kfunc $bpf_session_is_return / r0 = 0 / exit", "session", 0, ""),
    ("call kfunc $bpf_session_is_return / r0 = 0 / exit", "kprobe", EACCES, "is not allowed"),
]


@pytest.mark.parametrize("release", ["6.12", "7.2"])
@pytest.mark.parametrize(("text", "kind", "errno", "message"), NEWER)
def test_kernels_say_of_a_call(text, kind, errno, message, release):
    got, said = answer(text, kind, release)
    assert (got, message in said) == (errno, True), said


LATEST = [
    (LOCK + LOCK + UNLOCK + UNLOCK + END, "fentry", 0, ""),
    (SAVE + RESTORE + END, "fentry", 0, ""),
    (SAVE + END, "fentry", EINVAL, "bpf_local_irq_save-ed region"),
    (RESTORE + END, "fentry", EINVAL, "expected an initialized irq flag as R1"),
    (SAVE + SAVE + END, "fentry", EINVAL, "expected uninitialized irq flag as R1"),
    ("r6 = r1 / call kfunc $bpf_session_cookie / r1 = 1 / *(u64 *)(r0 +0) = r1 / " + END, "fsession", 0, ""),
    ("r1 = 0 / call kfunc $bpf_session_cookie / " + END, "fsession", EACCES, ""),
    ("call kfunc $bpf_session_cookie / " + END, "fentry", EACCES, "is not allowed"),
    ("r2 = r1 / call kfunc $bpf_strcmp / " + END, "kprobe", 0, ""),
]


@pytest.mark.parametrize(("text", "kind", "errno", "message"), LATEST)
def test_the_latest_kernel_says_of_a_call(text, kind, errno, message):
    got, said = answer(text, kind, "7.2")
    assert (got, message in said) == (errno, True), said


def test_older_kernels_have_none_of_them():
    assert answer(LOCK + END, "fentry", "6.1")[0] == -1
    assert answer(LOCK + LOCK + UNLOCK + UNLOCK + END, "fentry", "6.12")[1].startswith("nested rcu read lock")


def test_a_call_and_the_session_cookie_are_noted():
    verified = verify("call kfunc $bpf_session_cookie / " + END, "fsession", "7.2")
    assert verified.uses.session_cookie
    assert verified.insns[0].kfunc


def test_calls_need_a_gpl_program():
    refused = EINVAL, "cannot call kernel function from non-GPL compatible program"
    assert answer(LOCK + UNLOCK + END, licence="BSD") == refused
