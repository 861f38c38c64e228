"""Accesses to contexts, kernel structs and return values: programs as text, and what kernels say to them."""

from errno import EACCES, EINVAL

import pytest

from mini_kernel import answer, verify
from trampoline.bpf.verifier.state.result import Pointee

RELEASES = ["6.1", "6.12", "7.2"]
END = " / r0 = 0 / exit"
NONE = "invalid bpf_context access"

ANY = [
    # Arguments of functions: file, pair (two slots), task, a function
    ("r2 = *(u64 *)(r1 +0)", "fentry", 0, ""),
    ("r2 = *(u64 *)(r1 +8) / r2 = *(u64 *)(r1 +16)", "fentry", 0, ""),
    ("r2 = *(u32 *)(r1 +8)", "fentry", 0, ""),
    ("r2 = *(u8 *)(r1 +9)", "fentry", EACCES, f"{NONE} off=9 size=1"),
    ("r2 = *(u32 *)(r1 +0)", "fentry", EACCES, f"{NONE} off=0 size=4"),
    ("r2 = *(u64 *)(r1 +40)", "fentry", EACCES, f"{NONE} off=40 size=8"),
    ("r2 = *(u64 *)(r1 +96)", "fentry", EACCES, NONE),
    ("*(u64 *)(r1 +8) = r10", "fentry", EACCES, NONE),
    ("r2 = *(u64 *)(r1 +40)", "fexit", 0, ""),
    ("r2 = *(u64 *)(r1 +40)", "fmod", 0, ""),
    ("r2 = *(u64 *)(r1 +48)", "fexit", EACCES, NONE),
    ("r2 = *(u64 *)(r1 +0)", "void", 0, ""),
    ("r2 = *(u64 *)(r1 +8)", "void", EACCES, NONE),
    ("r2 = *(u64 *)(r1 +0) / r2 = *(u64 *)(r1 +8)", "lsm", 0, ""),
    ("r2 = *(u64 *)(r1 +8)", "lsm_void", EACCES, NONE),
    # A tracepoint's own data is no argument.
    ("r2 = *(u64 *)(r1 +24)", "tp_btf", 0, ""),
    ("r2 = *(u64 *)(r1 +32)", "tp_btf", EACCES, NONE),
    ("r2 = *(u64 *)(r1 +0) / r2 = *(u64 *)(r1 +8)", "iter", 0, ""),
    ("r2 = *(u64 *)(r1 +8) / r2 = *(u32 *)(r2 +0)", "iter", EACCES, "invalid mem access '"),
    ("r2 = *(u64 *)(r1 +8) / if r2 == 0 goto +1 / r2 = *(u32 *)(r2 +0)", "iter", 0, ""),
    ("r2 = *(u64 *)(r1 +16)", "iter", EACCES, NONE),
    # Other contexts
    ("r2 = *(u64 *)(r1 +160)", "kprobe", 0, ""),
    ("r2 = *(u64 *)(r1 +168)", "kprobe", EACCES, NONE),
    ("r2 = *(u16 *)(r1 +3)", "kprobe", EACCES, NONE),
    ("r2 = *(u64 *)(r1 +0)", "tracepoint", EACCES, NONE),
    ("r2 = *(u32 *)(r1 +8)", "tracepoint", 0, ""),
    ("r2 = *(u64 *)(r1 +8192)", "tracepoint", EACCES, NONE),
    ("r2 = *(u64 *)(r1 +88)", "raw_tp", 0, ""),
    ("r2 = *(u64 *)(r1 +96)", "raw_tp", EACCES, NONE),
    ("r2 = *(u32 *)(r1 +4)", "raw_tp", 0, ""),
    ("r2 = *(u32 *)(r1 +0)", "raw_tp_writable", EACCES, NONE),
    ("r2 = *(u64 *)(r1 +0) / *(u64 *)(r2 +8) = 1", "raw_tp_writable", 0, ""),
    ("r2 = *(u64 *)(r1 +0) / *(u64 *)(r2 -8) = 1", "raw_tp_writable", EACCES, "invalid tracepoint buffer access"),
    ("r2 = *(u32 *)(r1 +172)", "perf_event", 0, ""),
    ("r2 = *(u32 *)(r1 +8)", "perf_event", EACCES, NONE),
    ("r2 = *(u32 *)(r1 +0)", "socket", 0, ""),
    ("r2 = *(u8 *)(r1 +17)", "socket", 0, ""),
    ("r2 = *(u64 *)(r1 +0)", "socket", EACCES, NONE),
    ("r2 = *(u32 *)(r1 +76)", "socket", EACCES, NONE),
    ("r2 = 1 / *(u64 *)(r1 +48) = r2", "socket", 0, ""),
    ("r2 = 1 / *(u64 *)(r1 +64) = r2", "socket", EACCES, NONE),
    ("r2 = 1 / *(u32 *)(r1 +8) = r2", "socket", EACCES, NONE),
    ("r2 = 1 / *(u32 *)(r1 +8) = r2", "syscall", 0, ""),
    # Structs of the kernel
    ("r2 = *(u64 *)(r1 +0) / r3 = *(u32 *)(r2 +0)", "fentry", 0, ""),
    ("r2 = *(u64 *)(r1 +0) / r3 = *(u64 *)(r2 +8) / r3 = *(u64 *)(r3 +0)", "fentry", 0, ""),
    ("r2 = *(u64 *)(r1 +0) / r3 = *(u32 *)(r2 +8)", "fentry", EACCES, "cannot access ptr member f_inode with moff 8"),
    ("r2 = *(u64 *)(r1 +0) / r3 = *(u64 *)(r2 +16)", "fentry", 0, ""),
    ("r2 = *(u64 *)(r1 +0) / r3 = *(u64 *)(r2 +44)", "fentry", EACCES, "access beyond the end of member f_words"),
    ("r2 = *(u64 *)(r1 +0) / r3 = *(u64 *)(r2 +40)", "fentry", 0, ""),
    ("r2 = *(u64 *)(r1 +0) / r3 = *(u32 *)(r2 +4)", "fentry", EINVAL, "struct file doesn't have field at offset 4"),
    ("r2 = *(u64 *)(r1 +0) / r3 = *(u32 *)(r2 +400)", "fentry", 0, ""),
    ("r2 = *(u64 *)(r1 +0) / r3 = *(u64 *)(r2 -8)", "fentry", EACCES, "R2 is ptr_file invalid negative access: off=-8"),
    ("r2 = *(u64 *)(r1 +0) / *(u64 *)(r2 +0) = 0", "fentry", EACCES, "only read is supported"),
    ("r2 = *(u64 *)(r1 +24) / r3 = *(u32 *)(r2 +0)", "fentry", EACCES, "R2 is ptr_task_struct access user memory"),
    ("r2 = *(u64 *)(r1 +8) / r3 = *(u32 *)(r2 +0)", "fentry", EACCES, "R2 invalid mem access 'scalar'"),
]


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(("text", "kind", "errno", "message"), ANY)
def test_kernels_say_of_an_access(text, kind, errno, message, release):
    got, said = answer(text + END, kind, release)
    assert (got, message in said) == (errno, True), said


BY_RELEASE = [
    ("*(u64 *)(r1 +0) = r10", "kprobe", "6.12", EACCES, NONE),
    ("*(u64 *)(r1 +0) = 7", "kprobe", "6.18", 0, ""),
    ("*(u64 *)(r1 +0) = 7", "kprobe", "7.2", 0, ""),
    ("*(u64 *)(r1 +0) = 7", "lsm", "6.1", EACCES, "BPF_ST stores into R1 ctx is not allowed"),
    ("*(u64 *)(r1 +0) = 7", "lsm", "6.12", 0, ""),
    ("r2 = *(u64 *)(r1 +32)", "fentry", "6.12", EACCES, NONE),
    ("r2 = *(u64 *)(r1 +32)", "fentry", "7.2", 0, ""),
    ("r2 = *(u64 *)(r1 +8) / r3 = *(u32 *)(r2 +0)", "tp_btf", "6.12", 0, ""),
    # kfree_skb's fourth argument may be NULL.
    ("r2 = *(u64 *)(r1 +24) / r3 = *(u32 *)(r2 +0)", "tp_btf", "6.1", 0, ""),
    ("r2 = *(u64 *)(r1 +24) / r3 = *(u32 *)(r2 +0)", "tp_btf", "6.12", EACCES, "trusted_ptr_or_null"),
    # A pointer in a struct to something other than a struct is memory since 6.17.
    ("r2 = *(u64 *)(r1 +0) / r3 = *(u64 *)(r2 +56) / r3 = *(u8 *)(r3 +0)", "fentry", "6.12", EACCES, "'scalar'"),
    ("r2 = *(u64 *)(r1 +0) / r3 = *(u64 *)(r2 +56) / r3 = *(u8 *)(r3 +900)", "fentry", "7.2", 0, ""),
]


@pytest.mark.parametrize(("text", "kind", "release", "errno", "message"), BY_RELEASE)
def test_releases_differ_in_an_access(text, kind, release, errno, message):
    got, said = answer(text + END, kind, release)
    assert (got, message in said) == (errno, True), said


def test_what_is_read_of_the_arguments_is_noted():
    verified = verify("r2 = *(u64 *)(r1 +0) / r2 = *(u64 *)(r1 +16) / r2 = *(u64 *)(r1 +40)" + END, "fexit")
    assert verified.accessed_args == {0, 1}
    assert verified.accesses_ret
    assert verified.max_ctx_offset == 48
    assert verify("r2 = *(u64 *)(r1 +8)" + END, "tp_btf").accessed_args == {1}


def test_loads_through_trusted_pointers_are_plain():
    text = "r2 = *(u64 *)(r1 +0) / r2 = *(u32 *)(r2 +0)" + END
    assert verify(text, "fentry").insns[1].pointee is Pointee.BTF_ID
    assert verify(text, "lsm").insns[1].pointee is Pointee.TRUSTED
    assert verify(text, "lsm", "6.1").insns[1].pointee is Pointee.BTF_ID


RETURNS = [
    ("r0 = 0", "fentry", RELEASES, 0),
    ("r0 = 1", "fentry", RELEASES, EINVAL),
    ("r0 = *(u64 *)(r1 +8)", "fexit", RELEASES, EINVAL),
    ("r0 = *(u64 *)(r1 +8) / r0 &= 0", "fexit", RELEASES, 0),
    ("r0 = -5", "fmod", RELEASES, 0),
    ("r0 = 5", "tp_btf", RELEASES, 0),
    ("r0 = 1", "iter", RELEASES, 0),
    ("r0 = 2", "iter", RELEASES, EINVAL),
    ("r0 = 7", "kprobe", RELEASES, 0),
    ("r0 = 2", "session", ["6.12", "7.2"], EINVAL),
    ("r0 = 1", "session", ["6.12", "7.2"], 0),
    ("r0 = 9", "socket", RELEASES, 0),
    ("r0 = 1", "lsm", ["6.1"], 0),
    ("r0 = 1", "lsm", ["6.12", "7.2"], EINVAL),
    ("r0 = -4095", "lsm", RELEASES, 0),
    ("r0 = -4096", "lsm", ["6.12", "7.2"], EINVAL),
    ("r0 = *(u64 *)(r1 +8)", "lsm", RELEASES, 0),
    ("r0 = 1", "lsm_bool", RELEASES, 0),
    ("r0 = 2", "lsm_bool", ["6.12", "7.2"], EINVAL),
    ("r0 = 77", "lsm_void", RELEASES, 0),
    ("r0 = 1", "fsession", ["7.2"], EINVAL),
]


@pytest.mark.parametrize(("text", "kind", "release", "errno"), [(t, k, r, e) for t, k, rs, e in RETURNS for r in rs])
def test_what_programs_may_return(text, kind, release, errno):
    got, said = answer(text + " / exit", kind, release)
    assert got == errno, said


def test_the_refusal_names_what_may_be_returned():
    text = "r0 = 1 / exit"
    assert answer(text, "fentry", "6.1")[1].endswith("R0 has value (0x1; 0x0) should have been in (0x0; 0x0)")
    assert answer(text, "lsm", "6.12")[1].endswith("R0 has smin=1 smax=1 should have been in [-4095, 0]")
