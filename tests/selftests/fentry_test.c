/* fentry sees the arguments of functions with one to six of them, and memory behind a pointer, which may be bad. */
#include "tramp_bpf.h"

u64 saw1, saw2, saw3, saw4, saw5, saw6, saw7, saw8;

SEC("fentry/bpf_fentry_test1") PROG(test1, int a)
{
	saw1 += a == 1;
	return 0;
}

SEC("fentry/bpf_fentry_test2") PROG(test2, int a, u64 b)
{
	saw2 += a == 2 && b == 3;
	return 0;
}

SEC("fentry/bpf_fentry_test3") PROG(test3, char a, int b, u64 c)
{
	saw3 += a == 4 && b == 5 && c == 6;
	return 0;
}

SEC("fentry/bpf_fentry_test4") PROG(test4, void *a, char b, int c, u64 d)
{
	saw4 += a == (void *)7 && b == 8 && c == 9 && d == 10;
	return 0;
}

SEC("fentry/bpf_fentry_test5") PROG(test5, u64 a, void *b, short c, int d, u64 e)
{
	saw5 += a == 11 && b == (void *)12 && c == 13 && d == 14 && e == 15;
	return 0;
}

SEC("fentry/bpf_fentry_test6") PROG(test6, u64 a, void *b, short c, int d, void *e, u64 f)
{
	saw6 += a == 16 && b == (void *)17 && c == 18 && d == 19 && e == (void *)20 && f == 21;
	return 0;
}

SEC("fentry/bpf_fentry_test7") PROG(test7, struct bpf_fentry_test_t *arg)
{
	saw7 += !arg;
	return 0;
}

SEC("fentry/bpf_fentry_test8") PROG(test8, struct bpf_fentry_test_t *arg)
{
	saw8 += !arg->a;
	return 0;
}

LICENSE("GPL");
