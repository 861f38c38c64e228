/* One program on both ends of a function: it is told which end it is at, and keeps 8 bytes from one to the other. */
#include "tramp_bpf.h"

extern u64 *bpf_session_cookie(void *ctx) from_kernel;
extern bool bpf_session_is_return(void *ctx) from_kernel;

u64 entered, left, kept;

SEC("fsession/bpf_fentry_test2") PROG(session, int a, u64 b, int ret)
{
	u64 *cookie = bpf_session_cookie(ctx);

	if (bpf_session_is_return(ctx)) {
		left += a == 2 && b == 3 && ret == 5;
		kept += *cookie == 0x5e55;
		return 0;
	}
	entered += a == 2 && b == 3;
	*cookie = 0x5e55;
	return 0;
}

LICENSE("GPL");
