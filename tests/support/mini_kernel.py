"""A kernel of a few types and functions, and programs for it from text."""

from functools import cache

from kernel_releases import kernel_view

from btf_writer import Writer
from trampoline.bpf.btf.btf import Btf, BtfKind
from trampoline.bpf.isa import parse
from trampoline.bpf.program import BpfProgram, MapSpec
from trampoline.bpf.uapi import AttachType, MapType, ProgFlag, ProgType
from trampoline.bpf.verifier.errors import Unsupported, VerifierError
from trampoline.bpf.verifier.state.result import Verified
from trampoline.bpf.verifier.target.check_attach_target import AttachTarget
from trampoline.bpf.verifier.walk.bpf_check import bpf_check

MAPS = (
    MapSpec("array", MapType.ARRAY, 4, 16, 8),
    MapSpec("hash", MapType.HASH, 8, 16, 8),
    MapSpec("ring", MapType.RINGBUF, 0, 0, 4096),
    MapSpec("progs", MapType.PROG_ARRAY, 4, 4, 4),
    MapSpec("queue", MapType.QUEUE, 0, 8, 4),
    MapSpec("stacks", MapType.STACK_TRACE, 4, 1016, 4),
    MapSpec("text", MapType.ARRAY, 4, 8, 1, flags=1 << 7, initial=b"%d %s", readonly=True),
    MapSpec("bloom", MapType.BLOOM_FILTER, 0, 8, 4),
    MapSpec("trie", MapType.LPM_TRIE, 8, 8, 4, flags=1),
)
KINDS = {
    "fentry": (ProgType.TRACING, AttachType.TRACE_FENTRY, "reads_file"),
    "fexit": (ProgType.TRACING, AttachType.TRACE_FEXIT, "reads_file"),
    "fmod": (ProgType.TRACING, AttachType.MODIFY_RETURN, "reads_file"),
    "fsession": (ProgType.TRACING, AttachType.TRACE_FSESSION, "reads_file"),
    "void": (ProgType.TRACING, AttachType.TRACE_FEXIT, "drops_file"),
    "tp_btf": (ProgType.TRACING, AttachType.TRACE_RAW_TP, "btf_trace_kfree_skb"),
    "iter": (ProgType.TRACING, AttachType.TRACE_ITER, "bpf_iter_task"),
    "lsm": (ProgType.LSM, AttachType.LSM_MAC, "bpf_lsm_file_open"),
    "lsm_void": (ProgType.LSM, AttachType.LSM_MAC, "bpf_lsm_file_free_security"),
    "lsm_bool": (ProgType.LSM, AttachType.LSM_MAC, "bpf_lsm_audit_rule_known"),
    "kprobe": (ProgType.KPROBE, AttachType.NONE, ""),
    "session": (ProgType.KPROBE, AttachType.TRACE_KPROBE_SESSION, ""),
    "tracepoint": (ProgType.TRACEPOINT, AttachType.NONE, ""),
    "perf_event": (ProgType.PERF_EVENT, AttachType.NONE, ""),
    "raw_tp": (ProgType.RAW_TRACEPOINT, AttachType.NONE, ""),
    "raw_tp_writable": (ProgType.RAW_TRACEPOINT_WRITABLE, AttachType.NONE, ""),
    "socket": (ProgType.SOCKET_FILTER, AttachType.NONE, ""),
    "syscall": (ProgType.SYSCALL, AttachType.NONE, ""),
}


@cache
def types() -> Btf:
    """The kernel's BTF: ids are those that the names below are found with."""
    w = Writer()
    number, small, wide = w.int("int", 4, 1), w.int("bool", 1), w.int("long", 8, 1)
    words = w.add(BtfKind.ARRAY, words=(number, number, 4))
    flexible = w.add(BtfKind.ARRAY, words=(number, number, 0))
    inode = w.struct("inode", 8, ("i_ino", wide, 0))
    to_inode = w.add(BtfKind.PTR, third=inode)
    path = w.struct("path", 16, ("mnt", w.add(BtfKind.PTR), 0), ("dentry", w.add(BtfKind.PTR), 64))
    either = w.struct("", 8, ("number", wide, 0), ("inode", to_inode, 0), kind=BtfKind.UNION)
    file = w.struct(
        "file",
        72,
        ("f_mode", number, 0),
        ("f_inode", to_inode, 64),
        ("f_path", path, 128),
        ("f_words", words, 256),
        ("f_either", either, 384),
        ("f_text", w.add(BtfKind.PTR, third=w.int("char", 1)), 448),
        ("f_tail", flexible, 576),
    )
    to_file = w.add(BtfKind.PTR, third=file)
    task = w.struct("task_struct", 24, ("pid", number, 0), ("real_parent", w.count + 4, 64), ("f", to_file, 128))
    tagged = w.add(BtfKind.TYPE_TAG, "rcu", task)
    user = w.add(BtfKind.TYPE_TAG, "user", task)
    assert w.add(BtfKind.PTR, third=tagged) == task + 3
    w.struct("task_struct__safe_trusted", 8, ("f", to_file, 0))
    to_task, to_user = w.add(BtfKind.PTR, third=task), w.add(BtfKind.PTR, third=user)
    meta = w.struct("bpf_iter_meta", 8, ("seq", wide, 0))
    to_meta, void = w.add(BtfKind.PTR, third=meta), w.add(BtfKind.PTR)
    handler = w.add(BtfKind.PTR, third=w.proto(0))
    pair = w.struct("pair", 16, ("first", wide, 0), ("second", wide, 64))
    w.func("reads_file", number, ("file", to_file), ("pair", pair), ("task", to_user), ("call", handler))
    w.func("drops_file", 0, ("file", to_file))
    w.func("bpf_iter_task", number, ("meta", to_meta), ("task", to_task))
    w.func("bpf_lsm_file_open", number, ("file", to_file))
    w.func("bpf_lsm_file_free_security", 0, ("file", to_file))
    w.func("bpf_lsm_audit_rule_known", number, ("rule", number))
    trace = w.proto(0, ("", void), ("", to_file), ("", to_task), ("", wide), ("", to_task))
    w.add(BtfKind.TYPEDEF, "btf_trace_kfree_skb", w.add(BtfKind.PTR, third=trace))
    iterator = w.struct("bpf_iter_num", 8, ("opaque", wide, 0))
    to_iterator = w.add(BtfKind.PTR, third=iterator)
    to_number, to_wide = w.add(BtfKind.PTR, third=number), w.add(BtfKind.PTR, third=wide)
    kfuncs = (
        w.func("bpf_task_acquire", to_task, ("p", to_task)),
        w.func("bpf_task_release", 0, ("p", to_task)),
        w.func("bpf_rcu_read_lock", 0),
        w.func("bpf_rcu_read_unlock", 0),
        w.func("bpf_preempt_disable", 0),
        w.func("bpf_preempt_enable", 0),
        w.func("bpf_local_irq_save", 0, ("flags__irq_flag", to_wide)),
        w.func("bpf_local_irq_restore", 0, ("flags__irq_flag", to_wide)),
        w.func("bpf_iter_num_new", number, ("it", to_iterator), ("start", number), ("end", number)),
        w.func("bpf_iter_num_next", to_number, ("it", to_iterator)),
        w.func("bpf_iter_num_destroy", 0, ("it", to_iterator)),
        w.func("bpf_throw", 0, ("cookie", wide)),
        w.func("bpf_rdonly_cast", void, ("obj__ign", void), ("btf_id__k", number)),
        w.func("bpf_session_is_return", small, ("ctx", void)),
        w.func("bpf_session_cookie", to_wide, ("ctx", void)),
        w.func("bpf_strcmp", number, ("s1__ign", void), ("s2__ign", void)),
        w.func("bpf_list_pop_front", void, ("head", void)),
    )
    for kfunc in kfuncs:
        w.add(BtfKind.DECL_TAG, "bpf_kfunc", kfunc, words=(0xFFFFFFFF,))
    return w.btf()


def type_named(name: str) -> int:
    """The type id of a function or struct."""
    functions = types().functions_named(name)
    return functions[0].id if functions else types().struct_named(name)


def _target(name: str) -> AttachTarget | None:
    if not name:
        return None
    btf = types()
    if functions := btf.functions_named(name):
        return AttachTarget(name, btf, functions[0].id, functions[0])
    found = next(n for n in range(1, len(btf)) if btf.type(n).name == name)
    return AttachTarget(name, btf, found)


def verify(
    text: str, kind: str = "fentry", release: str = "6.12", *, licence: str = "GPL", sleepable: bool = False
) -> Verified:
    """Verifies a program. ``/`` separates instructions; ``$name`` is the type id of a function or struct."""
    for name in sorted({word.strip("$") for word in text.split() if word.startswith("$")}, key=len, reverse=True):
        text = text.replace(f"${name}", str(type_named(name)))
    prog_type, attach, target = KINDS[kind]
    flags = int(ProgFlag.SLEEPABLE) if sleepable else 0
    found = _target(target)
    program = BpfProgram(
        "test",
        parse("\n".join(text.split(" / "))),
        prog_type,
        attach,
        licence,
        flags,
        found.btf_id if found else 0,
        maps=MAPS,
    )
    return bpf_check(program, kernel_view(release, types()), found)


def answer(*args, **kwargs) -> tuple[int, str]:
    """(0, "") for an accepted program, errno and message of a refusal; -1 and the feature where it is not modelled."""
    try:
        verify(*args, **kwargs)
    except VerifierError as error:
        return error.errno, error.summary
    except Unsupported as error:
        return -1, error.feature
    return 0, ""
