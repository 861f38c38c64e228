/* Arguments by number: their count, one after the other, one too many, and the return value where there is one.
 * What is above a narrow argument in its 8 bytes is not its own. */
#include "tramp_bpf.h"

u64 entry_ok, exit_ok, modify_ok, after_modify_ok;

inlined bool is_refused(u64 *ctx, u32 n)
{
	u64 value = 0;

	return bpf_get_func_arg(ctx, n, &value) == -EINVAL;
}

SEC("fentry/bpf_fentry_test1") int at_entry(u64 *ctx)
{
	u64 a = 0, unused = 0;
	bool ok = bpf_get_func_arg_cnt(ctx) == 1;

	ok &= !bpf_get_func_arg(ctx, 0, &a) && (int)a == 1;
	ok &= is_refused(ctx, 1);
	ok &= bpf_get_func_ret(ctx, &unused) == -EOPNOTSUPP;
	entry_ok += ok;
	return 0;
}

SEC("fexit/bpf_fentry_test2") int at_exit(u64 *ctx)
{
	u64 a = 0, b = 0, ret = 0;
	bool ok = bpf_get_func_arg_cnt(ctx) == 2;

	ok &= !bpf_get_func_arg(ctx, 0, &a) && (int)a == 2;
	ok &= !bpf_get_func_arg(ctx, 1, &b) && b == 3;
	ok &= is_refused(ctx, 2);
	ok &= !bpf_get_func_ret(ctx, &ret) && (int)ret == 5;
	exit_ok += ok;
	return 0;
}

SEC("fmod_ret/bpf_modify_return_test") PROG(at_modify, int first, int *second, int before)
{
	u64 a = 0, b = 0, ret = 1;
	bool ok = bpf_get_func_arg_cnt(ctx) == 2;

	ok &= !bpf_get_func_arg(ctx, 0, &a) && (int)a == first;
	ok &= !bpf_get_func_arg(ctx, 1, &b) && (int *)b == second;
	ok &= is_refused(ctx, 2);
	ok &= !bpf_get_func_ret(ctx, &ret) && !ret && !before;
	modify_ok += ok;
	return 1234;
}

SEC("fexit/bpf_modify_return_test") int after_modify(u64 *ctx)
{
	u64 ret = 0;

	after_modify_ok += !bpf_get_func_ret(ctx, &ret) && (int)ret == 1234;
	return 0;
}

LICENSE("GPL");
