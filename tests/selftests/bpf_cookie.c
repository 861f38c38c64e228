/* Each link has its own cookie, which its program sees. */
#include "tramp_bpf.h"

u64 entry_cookies, exit_cookies, modify_cookies;

SEC("fentry/bpf_fentry_test1") int cookie_at_entry(u64 *ctx)
{
	entry_cookies |= bpf_get_attach_cookie(ctx);
	return 0;
}

SEC("fexit/bpf_fentry_test1") int cookie_at_exit(u64 *ctx)
{
	exit_cookies |= bpf_get_attach_cookie(ctx);
	return 0;
}

SEC("fmod_ret/bpf_modify_return_test") PROG(cookie_at_modify, int a, int *b, int ret)
{
	modify_cookies |= bpf_get_attach_cookie(ctx);
	return ret;
}

LICENSE("GPL");
