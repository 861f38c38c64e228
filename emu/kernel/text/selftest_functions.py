"""Functions of the synthetic kernel: those of the kernel's selftests, with their semantics, and some for experiments.

net/bpf/test_run.c has ``bpf_fentry_test*`` and ``bpf_modify_return_test*``; the selftests' module bpf_testmod has the
many-argument and struct-argument ones.
"""

from emu.kernel.text.functions import FunctionText

_TESTMOD_STRUCTS = (
    "struct bpf_testmod_struct_arg_1 { int a; }; struct bpf_testmod_struct_arg_2 { long a; long b; };"
    "struct bpf_testmod_struct_arg_3 { int a; int b[1]; }; struct bpf_testmod_struct_arg_4 { u64 a; int b; };"
)


_FENTRY_TEST_T = "struct bpf_fentry_test_t { struct bpf_fentry_test_t *a; };"


def _lines(*lines: str) -> str:
    return "\n".join(lines)


_SUM_TEST7 = (
    "lea eax, [rdi + rsi]",
    "movsx edx, dx ; short c",
    "add eax, edx",
    "add eax, ecx",
    "add eax, r8d",
    "movsx r9d, r9b ; char f",
    "add eax, r9d",
)

TEST_FUNCTIONS = (
    FunctionText("bpf_fentry_test1", _lines("lea eax, [rdi + 1]", "ret"), "int bpf_fentry_test1(int a)"),
    FunctionText("bpf_fentry_test2", _lines("lea eax, [rdi + rsi]", "ret"), "int bpf_fentry_test2(int a, u64 b)"),
    FunctionText(
        "bpf_fentry_test3",
        _lines("movsx eax, dil ; char a", "add eax, esi", "add eax, edx", "ret"),
        "int bpf_fentry_test3(char a, int b, u64 c)",
    ),
    FunctionText(
        "bpf_fentry_test4",
        _lines("movsx eax, sil ; char b", "add eax, edi", "add eax, edx", "add eax, ecx", "ret"),
        "int bpf_fentry_test4(void *a, char b, int c, u64 d)",
    ),
    FunctionText(
        "bpf_fentry_test5",
        _lines(
            "lea eax, [rdi + rsi]",
            "movsx edx, dx ; short c",
            "add eax, edx",
            "add eax, ecx",
            "add eax, r8d",
            "ret",
        ),
        "int bpf_fentry_test5(u64 a, void *b, short c, int d, u64 e)",
    ),
    FunctionText(
        "bpf_fentry_test6",
        _lines(
            "lea eax, [rdi + rsi]",
            "movsx edx, dx ; short c",
            "add eax, edx",
            "add eax, ecx",
            "add eax, r8d",
            "add eax, r9d",
            "ret",
        ),
        "int bpf_fentry_test6(u64 a, void *b, short c, int d, void *e, u64 f)",
    ),
    FunctionText(
        "bpf_fentry_test7",
        _lines("mov eax, edi", "ret"),
        _FENTRY_TEST_T + "int bpf_fentry_test7(struct bpf_fentry_test_t *arg)",
    ),
    FunctionText(
        "bpf_fentry_test8",
        _lines("mov eax, [rdi]", "ret"),
        _FENTRY_TEST_T + "int bpf_fentry_test8(struct bpf_fentry_test_t *arg)",
    ),
    FunctionText("bpf_fentry_test9", _lines("mov eax, [rdi]", "ret"), "u32 bpf_fentry_test9(u32 *a)"),
    FunctionText("bpf_fentry_test10", _lines("mov eax, edi", "ret"), "int bpf_fentry_test10(const void *a)"),
    FunctionText(
        "bpf_modify_return_test",
        _lines("mov eax, [rsi]", "add eax, 1", "mov [rsi], eax ; the side effect", "add eax, edi", "ret"),
        "int bpf_modify_return_test(int a, int *b)",
    ),
    FunctionText(
        "bpf_modify_return_test2",
        _lines(
            "mov eax, [rsi]",
            "add eax, 1",
            "mov [rsi], eax ; the side effect",
            "add eax, edi",
            "movsx edx, dx ; short c",
            "add eax, edx",
            "add eax, ecx",
            "add eax, r8d",
            "movsx r9d, r9b ; char f",
            "add eax, r9d",
            "add eax, [rsp + 8] ; int g",
            "ret",
        ),
        "int bpf_modify_return_test2(int a, int *b, short c, int d, void *e, char f, int g)",
    ),
    FunctionText(
        "tramplab_calls_traced",
        _lines("sub rsp, 8", "call bpf_fentry_test1 ; traced as well, perhaps", "add rsp, 8", "add eax, 1", "ret"),
        "int tramplab_calls_traced(int a)",
    ),
    FunctionText(
        "tramplab_sleeps",
        _lines(
            "push rbx",
            "mov ebx, edi",
            "call schedule ; another task may run here",
            "lea eax, [rbx + 1]",
            "pop rbx",
            "ret",
        ),
        "int tramplab_sleeps(int a)",
    ),
    FunctionText(
        "tramplab_notrace", _lines("lea eax, [rdi + 1]", "ret"), "int tramplab_notrace(int a)", traceable=False
    ),
)
"""Functions of the kernel itself."""

TESTMOD_FUNCTIONS = (
    FunctionText(
        "bpf_testmod_fentry_test1", _lines("lea eax, [rdi + 1]", "ret"), "int bpf_testmod_fentry_test1(int a)"
    ),
    FunctionText(
        "bpf_testmod_fentry_test2", _lines("lea eax, [rdi + rsi]", "ret"), "int bpf_testmod_fentry_test2(int a, u64 b)"
    ),
    FunctionText(
        "bpf_testmod_fentry_test3",
        _lines("movsx eax, dil ; char a", "add eax, esi", "add eax, edx", "ret"),
        "int bpf_testmod_fentry_test3(char a, int b, u64 c)",
    ),
    FunctionText(
        "bpf_testmod_fentry_test7",
        _lines(*_SUM_TEST7, "add eax, [rsp + 8] ; int g", "ret"),
        "int bpf_testmod_fentry_test7(u64 a, void *b, short c, int d, void *e, char f, int g)",
    ),
    FunctionText(
        "bpf_testmod_fentry_test11",
        _lines(
            *_SUM_TEST7,
            "add eax, [rsp + 8] ; int g",
            "add eax, [rsp + 0x10] ; unsigned int h",
            "add eax, [rsp + 0x18]",
            "add eax, [rsp + 0x20]",
            "add eax, [rsp + 0x28]",
            "ret",
        ),
        "int bpf_testmod_fentry_test11(u64 a, void *b, short c, int d, void *e, char f, int g, unsigned int h, long i,"
        " __u64 j, unsigned long k)",
    ),
    FunctionText(
        "bpf_testmod_test_struct_arg_1",
        _lines("lea eax, [rdi + rsi] ; a.a + a.b", "add eax, edx", "add eax, ecx", "ret"),
        _TESTMOD_STRUCTS + "int bpf_testmod_test_struct_arg_1(struct bpf_testmod_struct_arg_2 a, int b, int c)",
    ),
    FunctionText(
        "bpf_testmod_test_struct_arg_2",
        _lines("lea eax, [rsi + rdx] ; b.a + b.b", "add eax, edi", "add eax, ecx", "ret"),
        _TESTMOD_STRUCTS + "int bpf_testmod_test_struct_arg_2(int a, struct bpf_testmod_struct_arg_2 b, int c)",
    ),
    FunctionText(
        "bpf_testmod_test_struct_arg_3",
        _lines("lea eax, [rdx + rcx] ; c.a + c.b", "add eax, edi", "add eax, esi", "ret"),
        _TESTMOD_STRUCTS + "int bpf_testmod_test_struct_arg_3(int a, int b, struct bpf_testmod_struct_arg_2 c)",
    ),
    FunctionText(
        "bpf_testmod_test_struct_arg_4",
        _lines(
            "lea eax, [rdi + rsi] ; a.a + b",
            "add eax, edx",
            "add eax, ecx",
            "add eax, r8d ; e.a",
            "add eax, r9d ; e.b",
            "ret",
        ),
        _TESTMOD_STRUCTS + "int bpf_testmod_test_struct_arg_4(struct bpf_testmod_struct_arg_1 a, int b, int c, int d,"
        " struct bpf_testmod_struct_arg_2 e)",
    ),
    FunctionText(
        "bpf_testmod_test_struct_arg_5", _lines("mov eax, 1", "ret"), "int bpf_testmod_test_struct_arg_5(void)"
    ),
    FunctionText(
        "bpf_testmod_test_struct_arg_6",
        _lines("mov eax, [rdi + 4] ; a->b[0]", "ret"),
        _TESTMOD_STRUCTS + "int bpf_testmod_test_struct_arg_6(struct bpf_testmod_struct_arg_3 *a)",
    ),
    FunctionText(
        "bpf_testmod_test_struct_arg_7",
        _lines(
            "lea eax, [rdi + rsi]",
            "movsx edx, dx ; short c",
            "add eax, edx",
            "add eax, ecx",
            "add eax, r8d",
            "add eax, [rsp + 8] ; f.a: the struct does not fit into r9 alone",
            "add eax, [rsp + 0x10] ; f.b",
            "ret",
        ),
        _TESTMOD_STRUCTS + "int bpf_testmod_test_struct_arg_7(u64 a, void *b, short c, int d, void *e,"
        " struct bpf_testmod_struct_arg_4 f)",
    ),
    FunctionText(
        "bpf_testmod_test_struct_arg_8",
        _lines(
            "lea eax, [rdi + rsi]",
            "movsx edx, dx ; short c",
            "add eax, edx",
            "add eax, ecx",
            "add eax, r8d",
            "add eax, [rsp + 8] ; f.a",
            "add eax, [rsp + 0x10] ; f.b",
            "add eax, r9d ; g took the register that f left",
            "ret",
        ),
        _TESTMOD_STRUCTS + "int bpf_testmod_test_struct_arg_8(u64 a, void *b, short c, int d, void *e,"
        " struct bpf_testmod_struct_arg_4 f, int g)",
    ),
    FunctionText(
        "bpf_testmod_test_struct_arg_9",
        _lines(
            *_SUM_TEST7,
            "movsx edx, word ptr [rsp + 8] ; short g",
            "add eax, edx",
            "movsx edx, byte ptr [rsp + 0x10] ; h.a",
            "add eax, edx",
            "movsx edx, word ptr [rsp + 0x12] ; h.b",
            "add eax, edx",
            "add eax, [rsp + 0x14] ; h.c",
            "add eax, [rsp + 0x18] ; h.d",
            "add eax, [rsp + 0x20] ; long i",
            "ret",
        ),
        _TESTMOD_STRUCTS + "struct bpf_testmod_struct_arg_5 { char a; short b; int c; long d; };"
        "int bpf_testmod_test_struct_arg_9(u64 a, void *b, short c, int d, void *e, char f, short g,"
        " struct bpf_testmod_struct_arg_5 h, long i)",
    ),
    # 10 to 13 were added by the tracing-multi series: prototypes that agree in part.
    FunctionText(
        "bpf_testmod_test_struct_arg_10",
        _lines("lea eax, [rsi + rdx] ; b.a + b.b", "add eax, edi", "ret"),
        _TESTMOD_STRUCTS + "int bpf_testmod_test_struct_arg_10(int a, struct bpf_testmod_struct_arg_2 b)",
    ),
    FunctionText(
        "bpf_testmod_test_struct_arg_11",
        _lines("lea rax, [rsi + rdx] ; b.a + b.b, given as a pointer", "add eax, edi", "add eax, ecx", "ret"),
        _TESTMOD_STRUCTS
        + "struct bpf_testmod_struct_arg_2 *bpf_testmod_test_struct_arg_11(int a, struct bpf_testmod_struct_arg_2 b,"
        " int c)",
    ),
    FunctionText(
        "bpf_testmod_test_struct_arg_12",
        _lines("lea eax, [rsi + rdx] ; b.a + b.b", "add eax, edi", "add eax, [rcx]", "ret"),
        _TESTMOD_STRUCTS + "int bpf_testmod_test_struct_arg_12(int a, struct bpf_testmod_struct_arg_2 b, int *c)",
    ),
    FunctionText(
        "bpf_testmod_test_struct_arg_13",
        _lines("lea eax, [rdi + rsi] ; a.a + a.b", "ret"),
        _TESTMOD_STRUCTS + "int bpf_testmod_test_struct_arg_13(struct bpf_testmod_struct_arg_2 a)",
    ),
)
"""Functions of the module bpf_testmod."""

NR_ARGS_FUNCTIONS = tuple(
    FunctionText(
        f"tramplab_args{count}",
        _lines("xor eax, eax", "ret"),
        f"u64 tramplab_args{count}({', '.join(f'u64 a{i}' for i in range(count)) or 'void'})",
    )
    for count in range(13)
)
"""Functions of 0 to 12 u64 arguments, for benches."""
