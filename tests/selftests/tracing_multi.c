/* One program on many functions. It knows them by their address; their arguments it reads by number. */
#include "tramp_bpf.h"

extern const void bpf_fentry_test1 from_kernel;
extern const void bpf_fentry_test2 from_kernel;
extern const void bpf_fentry_test3 from_kernel;
extern const void bpf_fentry_test4 from_kernel;
extern const void bpf_fentry_test5 from_kernel;
extern const void bpf_fentry_test6 from_kernel;
extern const void bpf_fentry_test7 from_kernel;
extern const void bpf_fentry_test8 from_kernel;

u64 entered, left, slept; /* calls that were seen */
u64 args_ok, rets_ok; /* and those in which all was as expected */
u64 entry_seen, exit_seen; /* a bit for each function */
u64 cookies_ok;
u64 module_entered;
bool with_cookies;

/* The first argument that the test's calls pass to the function, its value in return, and its cookie. */
struct expected {
	u32 number, first, count, ret, cookie;
};

static noinline void expect(u64 ip, struct expected *is)
{
	if (ip == (u64)&bpf_fentry_test1)
		*is = (struct expected){ 1, 1, 1, 2, 1 };
	else if (ip == (u64)&bpf_fentry_test2)
		*is = (struct expected){ 2, 2, 2, 5, 7 };
	else if (ip == (u64)&bpf_fentry_test3)
		*is = (struct expected){ 3, 4, 3, 15, 2 };
	else if (ip == (u64)&bpf_fentry_test4)
		*is = (struct expected){ 4, 7, 4, 34, 3 };
	else if (ip == (u64)&bpf_fentry_test5)
		*is = (struct expected){ 5, 11, 5, 65, 4 };
	else if (ip == (u64)&bpf_fentry_test6)
		*is = (struct expected){ 6, 16, 6, 111, 5 };
	else if (ip == (u64)&bpf_fentry_test7)
		*is = (struct expected){ 7, 0, 0, 0, 6 };
	else if (ip == (u64)&bpf_fentry_test8)
		*is = (struct expected){ 8, 0, 0, 0, 8 };
}

/* The arguments of these functions are consecutive numbers; what is above a narrow one is not its own. */
inlined bool arguments_ok(u64 *ctx, struct expected *is)
{
	u64 value;

	for (u32 n = 0; n < 6; n++) {
		value = 0;
		if (n < is->count && (bpf_get_func_arg(ctx, n, &value) || (u8)value != is->first + n))
			return 0;
	}
	return 1;
}

SEC("fentry.multi/bpf_fentry_test*") int multi_entry(u64 *ctx)
{
	struct expected is = {};

	expect(bpf_get_func_ip(ctx), &is);
	entered++;
	entry_seen |= 1ULL << (is.number & 63);
	args_ok += arguments_ok(ctx, &is);
	cookies_ok += with_cookies && bpf_get_attach_cookie(ctx) == is.cookie;
	return 0;
}

SEC("fexit.multi/bpf_fentry_test*") int multi_exit(u64 *ctx)
{
	struct expected is = {};
	u64 ret = 0;

	expect(bpf_get_func_ip(ctx), &is);
	left++;
	exit_seen |= 1ULL << (is.number & 63);
	args_ok += arguments_ok(ctx, &is);
	bpf_get_func_ret(ctx, &ret);
	rets_ok += is.number && (u32)ret == is.ret;
	return 0;
}

SEC("fentry.multi.s/bpf_fentry_test1") int multi_sleepable(u64 *ctx)
{
	slept++;
	return 0;
}

SEC("fentry.multi/bpf_testmod:bpf_testmod_fentry_test*") int multi_module(u64 *ctx)
{
	module_entered++;
	return 0;
}

LICENSE("GPL");
