/* One program of each kind, to be attached in turn until the trampoline takes no more. */
#include "tramp_bpf.h"

u64 entered, modified, left;

SEC("fentry/bpf_modify_return_test") int count_entry(u64 *ctx)
{
	entered++;
	return 0;
}

SEC("fmod_ret/bpf_modify_return_test") PROG(count_modify, int a, int *b, int ret)
{
	modified++;
	return ret;
}

SEC("fexit/bpf_modify_return_test") int count_exit(u64 *ctx)
{
	left++;
	return 0;
}

LICENSE("GPL");
