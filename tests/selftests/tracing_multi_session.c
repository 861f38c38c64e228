/* fsession on many functions: twice a call. */
#include "tramp_bpf.h"

extern bool bpf_session_is_return(void *ctx) from_kernel;

u64 entered, left;

SEC("fsession.multi/bpf_fentry_test*") int multi_session(u64 *ctx)
{
	if (bpf_session_is_return(ctx))
		left++;
	else
		entered++;
	return 0;
}

LICENSE("GPL");
