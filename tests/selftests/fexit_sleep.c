/* A function that sleeps keeps its image: who entered it leaves through it, or, after detaching, around fexit. */
#include "tramp_bpf.h"

int wanted;
u64 entered, left;

SEC("fentry/tramplab_sleeps") PROG(sleep_begins, int a)
{
	if (a == wanted)
		entered++;
	return 0;
}

SEC("fexit/tramplab_sleeps") PROG(sleep_ends, int a, int ret)
{
	if (a == wanted && ret == a + 1)
		left++;
	return 0;
}

LICENSE("GPL");
