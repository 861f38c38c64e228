/* fexit sees the arguments as they were passed, and what the function returned. */
#include "tramp_bpf.h"

u64 saw1, saw2, saw3, saw4, saw5, saw6, saw7, saw8;

SEC("fexit/bpf_fentry_test1") PROG(test1, int a, int ret)
{
	saw1 += a == 1 && ret == 2;
	return 0;
}

SEC("fexit/bpf_fentry_test2") PROG(test2, int a, u64 b, int ret)
{
	saw2 += a == 2 && b == 3 && ret == 5;
	return 0;
}

SEC("fexit/bpf_fentry_test3") PROG(test3, char a, int b, u64 c, int ret)
{
	saw3 += a == 4 && b == 5 && c == 6 && ret == 15;
	return 0;
}

SEC("fexit/bpf_fentry_test4") PROG(test4, void *a, char b, int c, u64 d, int ret)
{
	saw4 += a == (void *)7 && b == 8 && c == 9 && d == 10 && ret == 34;
	return 0;
}

SEC("fexit/bpf_fentry_test5") PROG(test5, u64 a, void *b, short c, int d, u64 e, int ret)
{
	saw5 += a == 11 && b == (void *)12 && c == 13 && d == 14 && e == 15 && ret == 65;
	return 0;
}

SEC("fexit/bpf_fentry_test6") PROG(test6, u64 a, void *b, short c, int d, void *e, u64 f, int ret)
{
	saw6 += a == 16 && b == (void *)17 && c == 18 && d == 19 && e == (void *)20 && f == 21 && ret == 111;
	return 0;
}

SEC("fexit/bpf_fentry_test7") PROG(test7, struct bpf_fentry_test_t *arg)
{
	saw7 += !arg;
	return 0;
}

SEC("fexit/bpf_fentry_test8") PROG(test8, struct bpf_fentry_test_t *arg)
{
	saw8 += !arg->a;
	return 0;
}

LICENSE("GPL");
