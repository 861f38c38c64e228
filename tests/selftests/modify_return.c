/* fentry, then fmod_ret, which may keep the function from being called, then fexit, which sees what is returned. */
#include "tramp_bpf.h"

int decided; /* what fmod_ret returns: 0 lets the function run */
static int order;
u64 entered_first, modified_second, left_third;
u64 entered2, modified2, left2;
int ret_at_exit, ret_at_exit2;

SEC("fentry/bpf_modify_return_test") PROG(entry, int a, int *b)
{
	order = 1;
	entered_first += a == 1;
	return 0;
}

SEC("fmod_ret/bpf_modify_return_test") PROG(modify, int a, int *b, int ret)
{
	/* No fmod_ret program ran before, so the return value is 0 so far. */
	modified_second += order == 1 && ret == 0;
	order = 2;
	return decided;
}

SEC("fexit/bpf_modify_return_test") PROG(leave, int a, int *b, int ret)
{
	left_third += order == 2;
	order = 3;
	ret_at_exit = ret;
	return 0;
}

SEC("fentry/bpf_modify_return_test2") PROG(entry2, int a, int *b, short c, int d, void *e, char f, int g)
{
	entered2 += a == 1 && c == 3 && d == 4 && e == (void *)5 && f == 6 && g == 7;
	return 0;
}

SEC("fmod_ret/bpf_modify_return_test2") PROG(modify2, int a, int *b, short c, int d, void *e, char f, int g, int ret)
{
	modified2 += ret == 0;
	return decided;
}

SEC("fexit/bpf_modify_return_test2") PROG(leave2, int a, int *b, short c, int d, void *e, char f, int g, int ret)
{
	left2++;
	ret_at_exit2 = ret;
	return 0;
}

LICENSE("GPL");
