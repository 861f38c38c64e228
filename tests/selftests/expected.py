"""What must be seen when the programs of this folder are attached and the traced functions called.

Data only. An argument is a number, bytes (a struct by value), or a ``Buffer``, which is passed by its address. Globals
are unsigned numbers as wide as the variable.
"""

from dataclasses import dataclass, field
from struct import pack, unpack


@dataclass(frozen=True)
class Buffer:
    """Memory behind a pointer: its bytes before the call, and after it (None: as before)."""

    before: bytes
    after: bytes | None = None


@dataclass(frozen=True)
class Call:
    """A call of a kernel's function; ``ret`` is what it returns, as a C int."""

    function: str
    args: tuple[int | bytes | Buffer, ...]
    ret: int


@dataclass(frozen=True)
class Attach:
    """A program's link. ``functions`` only of multi links; ``cookies`` one for each function."""

    program: str
    functions: tuple[str, ...] = ()
    cookies: tuple[int, ...] = ()


@dataclass(frozen=True)
class Selftest:
    """One run: load the object's programs, set globals, attach in order, call in order, compare.

    ``needs`` says what a kernel or design must have: ``module`` (bpf_testmod), ``stack-args``, ``get-func-args``,
    ``modify-return-test2``, ``struct-args``, ``fsession``, ``multi`` (mainline's), ``multi-posted``. ``ips``: globals
    that must be the address of a function. An array's value is that of its elements.
    """

    object: str
    attach: tuple[Attach, ...]
    calls: tuple[Call, ...]
    globals: dict[str, int | tuple[int, ...]]
    set: dict[str, int] = field(default_factory=dict)
    ips: dict[str, str] = field(default_factory=dict)
    needs: frozenset[str] = frozenset()
    name: str = ""


REGISTERS = 6


def placed(args: tuple[int | bytes, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Register and stack words of a call (SysV): a struct is in registers whole, or on the stack; others fill up."""
    registers: list[int] = []
    stack: list[int] = []
    for arg in args:
        if isinstance(arg, int):
            words = (arg % (1 << 64),)
        else:
            content = arg.ljust(-(-len(arg) // 8) * 8, b"\0")
            words = unpack(f"<{len(content) // 8}Q", content)
        (registers if len(registers) + len(words) <= REGISTERS else stack).extend(words)
    return tuple(registers), tuple(stack)


def _each(*names: str) -> tuple[Attach, ...]:
    return tuple(Attach(name) for name in names)


def _s2(a: int, b: int) -> bytes:
    return pack("<qq", a, b)


ZERO = Buffer(bytes(8))

# What the kernel's test run calls with a tracing program (net/bpf/test_run.c).
FENTRY_CALLS = (
    Call("bpf_fentry_test1", (1,), 2),
    Call("bpf_fentry_test2", (2, 3), 5),
    Call("bpf_fentry_test3", (4, 5, 6), 15),
    Call("bpf_fentry_test4", (7, 8, 9, 10), 34),
    Call("bpf_fentry_test5", (11, 12, 13, 14, 15), 65),
    Call("bpf_fentry_test6", (16, 17, 18, 19, 20, 21), 111),
    Call("bpf_fentry_test7", (0,), 0),
    Call("bpf_fentry_test8", (ZERO,), 0),
)
ALL_FENTRY_CALLS = (*FENTRY_CALLS, Call("bpf_fentry_test9", (Buffer(bytes(4)),), 0), Call("bpf_fentry_test10", (0,), 0))

_B_IS_2 = pack("<i", 2)


def _modify_calls(*, runs: bool, ret: int, ret2: int) -> tuple[Call, ...]:
    b = Buffer(_B_IS_2, pack("<i", 3) if runs else _B_IS_2)
    return (
        Call("bpf_modify_return_test", (1, b), ret),
        Call("bpf_modify_return_test2", (1, b, 3, 4, 5, 6, 7), ret2),
    )


MANY7 = tuple(range(16, 23))
MANY11 = tuple(range(16, 27))
MODULE_CALLS = (
    Call("bpf_testmod_fentry_test1", (1,), 2),
    Call("bpf_testmod_fentry_test2", (2, 3), 5),
    Call("bpf_testmod_fentry_test3", (4, 5, 6), 15),
    Call("bpf_testmod_fentry_test7", MANY7, 133),
    Call("bpf_testmod_fentry_test11", MANY11, 231),
)
STRUCT_CALLS = (
    Call("bpf_testmod_test_struct_arg_1", (_s2(2, 3), 1, 4), 10),
    Call("bpf_testmod_test_struct_arg_2", (1, _s2(2, 3), 4), 10),
    Call("bpf_testmod_test_struct_arg_3", (1, 4, _s2(2, 3)), 10),
    Call("bpf_testmod_test_struct_arg_4", (pack("<i", 10), 1, 2, 3, _s2(2, 3)), 21),
    Call("bpf_testmod_test_struct_arg_5", (), 1),
    Call("bpf_testmod_test_struct_arg_6", (Buffer(pack("<ii", 0, 1)),), 1),
)
STRUCT_STACK_CALLS = (
    Call("bpf_testmod_test_struct_arg_7", (16, 17, 18, 19, 20, pack("<qi4x", 21, 22)), 133),
    Call("bpf_testmod_test_struct_arg_8", (16, 17, 18, 19, 20, pack("<qi4x", 21, 22), 23), 156),
    Call(
        "bpf_testmod_test_struct_arg_9",
        (16, 17, 18, 19, 20, 21, 22, pack("<bxhiq", 23, 24, 25, 26), 27),
        258,
    ),
)

_EIGHT = {f"saw{n}": 1 for n in range(1, 9)}
_TESTS = tuple(f"test{n}" for n in range(1, 9))
_COOKIES = (1, 7, 2, 3, 4, 5, 6, 8)
_FIRST_EIGHT = tuple(f"bpf_fentry_test{n}" for n in range(1, 9))
_MODULE = tuple(call.function for call in MODULE_CALLS)
_MASK = sum(1 << n for n in range(1, 9))

MODIFY_PROGRAMS = ("entry", "modify", "leave", "entry2", "modify2", "leave2")

SELFTESTS = (
    Selftest("fentry_test", _each(*_TESTS), FENTRY_CALLS, _EIGHT),
    Selftest("fexit_test", _each(*_TESTS), FENTRY_CALLS, _EIGHT),
    Selftest(
        "many_args",
        _each("entry7", "entry11", "exit7", "exit11"),
        MODULE_CALLS[3:],
        {"entered7": 1, "entered11": 1, "left7": 1, "left11": 1},
        needs=frozenset({"module", "stack-args"}),
    ),
    Selftest(
        "fexit_sleep",
        _each("sleep_begins", "sleep_ends"),
        (Call("tramplab_sleeps", (5,), 6), Call("tramplab_sleeps", (6,), 7)),
        {"entered": 1, "left": 1},
        set={"wanted": 5},
    ),
    Selftest("fexit_stress", _each("nothing"), FENTRY_CALLS[:1], {}),
    Selftest(
        "modify_return",
        _each(*MODIFY_PROGRAMS),
        _modify_calls(runs=True, ret=4, ret2=29),
        {"entered_first": 1, "modified_second": 1, "left_third": 1, "ret_at_exit": 4}
        | {"entered2": 1, "modified2": 1, "left2": 1, "ret_at_exit2": 29},
        set={"decided": 0},
        needs=frozenset({"modify-return-test2", "stack-args"}),
        name="modify_return, the function runs",
    ),
    Selftest(
        "modify_return",
        _each(*MODIFY_PROGRAMS),
        _modify_calls(runs=False, ret=-22, ret2=-22),
        {"entered_first": 1, "modified_second": 1, "left_third": 1, "ret_at_exit": (1 << 32) - 22}
        | {"entered2": 1, "modified2": 1, "left2": 1, "ret_at_exit2": (1 << 32) - 22},
        set={"decided": (1 << 32) - 22},
        needs=frozenset({"modify-return-test2", "stack-args"}),
        name="modify_return, the function does not run",
    ),
    Selftest(
        "modify_return",
        _each(*MODIFY_PROGRAMS[:3]),
        _modify_calls(runs=False, ret=-22, ret2=-22)[:1],
        {"entered_first": 1, "modified_second": 1, "left_third": 1, "ret_at_exit": (1 << 32) - 22},
        set={"decided": (1 << 32) - 22},
        name="modify_return, two arguments",
    ),
    Selftest(
        "trampoline_count",
        _each("count_entry", "count_modify", "count_exit"),
        _modify_calls(runs=True, ret=4, ret2=29)[:1],
        {"entered": 1, "modified": 1, "left": 1},
    ),
    Selftest(
        "get_func_ip",
        _each("ip_at_entry", "ip_at_exit", "ip_at_modify"),
        (*FENTRY_CALLS[:2], *_modify_calls(runs=True, ret=4, ret2=29)[:1]),
        {"entry_ok": 1, "exit_ok": 1, "modify_ok": 1},
        ips={"entry_ip": "bpf_fentry_test1"},
    ),
    Selftest(
        "get_func_args",
        _each("at_entry", "at_exit", "at_modify", "after_modify"),
        (*FENTRY_CALLS[:2], *_modify_calls(runs=False, ret=1234, ret2=0)[:1]),
        {"entry_ok": 1, "exit_ok": 1, "modify_ok": 1, "after_modify_ok": 1},
        needs=frozenset({"get-func-args"}),
    ),
    Selftest(
        "bpf_cookie",
        (
            Attach("cookie_at_entry", cookies=(0x10000000000000,)),
            Attach("cookie_at_exit", cookies=(0x20000000000000,)),
            Attach("cookie_at_modify", cookies=(0x30000000000000,)),
        ),
        (FENTRY_CALLS[0], *_modify_calls(runs=True, ret=4, ret2=29)[:1]),
        {
            "entry_cookies": 0x10000000000000,
            "exit_cookies": 0x20000000000000,
            "modify_cookies": 0x30000000000000,
        },
    ),
    Selftest(
        "tracing_struct",
        _each(*(f"{end}{n}" for n in range(1, 7) for end in ("entry", "exit"))),
        STRUCT_CALLS,
        {
            "entered": (0, 1, 1, 1, 1, 1, 1, 0, 0, 0),
            "left": (0, 1, 1, 1, 1, 1, 1, 0, 0, 0),
            "slots1": 4,
            "slots1_seen": (2, 3, 1, 4),
            "pointed_to": 1,
        },
        needs=frozenset({"module", "struct-args"}),
    ),
    Selftest(
        "tracing_struct",
        _each(*(f"{end}{n}" for n in range(7, 10) for end in ("entry", "exit"))),
        STRUCT_STACK_CALLS,
        {"entered": (0, 0, 0, 0, 0, 0, 0, 1, 1, 1), "left": (0, 0, 0, 0, 0, 0, 0, 1, 1, 1)},
        needs=frozenset({"module", "struct-args", "stack-args"}),
        name="tracing_struct, on the stack",
    ),
    Selftest(
        "fsession",
        _each("session"),
        FENTRY_CALLS[1:2],
        {"entered": 1, "left": 1, "kept": 1},
        needs=frozenset({"fsession"}),
    ),
    Selftest(
        "tracing_multi",
        (
            Attach("multi_entry", ("bpf_fentry_test*",)),
            Attach("multi_exit", ("bpf_fentry_test*",)),
            Attach("multi_sleepable", ("bpf_fentry_test1",)),
        ),
        ALL_FENTRY_CALLS,
        {
            "entered": 10,
            "left": 10,
            "slept": 1,
            "entry_seen": _MASK | 1,
            "exit_seen": _MASK | 1,
            "args_ok": 20,
            "rets_ok": 8,
        },
        needs=frozenset({"multi"}),
    ),
    Selftest(
        "tracing_multi",
        (Attach("multi_entry", _FIRST_EIGHT, _COOKIES),),
        FENTRY_CALLS,
        {"entered": 8, "entry_seen": _MASK, "args_ok": 8, "cookies_ok": 8},
        set={"with_cookies": 1},
        needs=frozenset({"multi"}),
        name="tracing_multi, cookies",
    ),
    Selftest(
        "tracing_multi",
        (Attach("multi_module", _MODULE),),
        MODULE_CALLS,
        {"module_entered": 5},
        needs=frozenset({"multi", "module", "stack-args"}),
        name="tracing_multi, a module's functions",
    ),
    Selftest(
        "tracing_multi_session",
        (Attach("multi_session", ("bpf_fentry_test*",)),),
        ALL_FENTRY_CALLS,
        {"entered": 10, "left": 10},
        needs=frozenset({"multi", "fsession"}),
    ),
    Selftest(
        "tracing_multi_link",
        (
            Attach("reads_struct_a", ("bpf_testmod_test_struct_arg_1", "bpf_testmod_test_struct_arg_13")),
            Attach("reads_a_and_struct", ("bpf_testmod_test_struct_arg_2", "bpf_testmod_test_struct_arg_10")),
            Attach("reads_third", ("bpf_testmod_test_struct_arg_1", "bpf_testmod_test_struct_arg_4")),
            Attach("reads_ret", tuple(f"bpf_testmod_test_struct_arg_{n}" for n in (1, 2, 3))),
            Attach("reads_all_and_ret", ("bpf_testmod_test_struct_arg_2", "bpf_testmod_test_struct_arg_12")),
        ),
        (*STRUCT_CALLS[:3], Call("bpf_testmod_test_struct_arg_13", (_s2(2, 3),), 5)),
        {"struct_a": 2, "struct_a_b": 1, "third_only": 1, "with_ret": 3, "with_all": 1},
        needs=frozenset({"multi-posted", "module", "struct-args"}),
    ),
)

MULTI_LINK_REFUSED = (
    ("reads_struct_a", (1, 1)),
    ("reads_struct_a", (1, 2)),
    ("reads_struct_a", (1, 4)),
    ("reads_a_and_struct", (2, 2)),
    ("reads_a_and_struct", (2, 13)),
    ("reads_third", (1, 12)),
    ("reads_ret", (1, 4)),
    ("reads_all_and_ret", (2, 10)),
    ("reads_all_and_ret", (2, 11)),
)
"""Programs of ``tracing_multi_link`` and the bpf_testmod_test_struct_arg_N that they cannot be attached to at once."""

TRAMPOLINE_COUNT = {"links": 38, "over": "E2BIG", "7.2": 36}
"""Programs of ``trampoline_count`` in turn (fentry, fmod_ret, fexit) that one function takes; the next is refused."""

RECURSION = {"misses": 2, "quiet_deletes": 2, "recursing_deletes": 2}
"""Of ``recursion``: after two deletes from each of its maps by user space."""
