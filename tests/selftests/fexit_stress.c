/* The smallest fexit program, to be loaded and attached as often as a trampoline takes it. */
#include "tramp_bpf.h"

SEC("fexit/bpf_fentry_test1") int nothing(u64 *ctx)
{
	return 0;
}

LICENSE("GPL");
