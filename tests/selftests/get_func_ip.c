/* bpf_get_func_ip gives the traced function's address, whatever its entry looks like. */
#include "tramp_bpf.h"

extern const void bpf_fentry_test1 from_kernel;
extern const void bpf_fentry_test2 from_kernel;
extern const void bpf_modify_return_test from_kernel;

u64 entry_ok, exit_ok, modify_ok, entry_ip;

SEC("fentry/bpf_fentry_test1") int ip_at_entry(u64 *ctx)
{
	entry_ip = bpf_get_func_ip(ctx);
	entry_ok += entry_ip == (u64)&bpf_fentry_test1;
	return 0;
}

SEC("fexit/bpf_fentry_test2") int ip_at_exit(u64 *ctx)
{
	exit_ok += bpf_get_func_ip(ctx) == (u64)&bpf_fentry_test2;
	return 0;
}

SEC("fmod_ret/bpf_modify_return_test") PROG(ip_at_modify, int a, int *b, int ret)
{
	modify_ok += bpf_get_func_ip(ctx) == (u64)&bpf_modify_return_test;
	return ret;
}

LICENSE("GPL");
