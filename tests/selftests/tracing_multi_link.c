/* The posted form of multi links: the section's function gives the prototype, and other functions may be added whose
 * prototypes agree in what the program reads. */
#include "tramp_bpf.h"

u64 struct_a, struct_a_b, third_only, with_ret, with_all;

/* int (S2 a, int b, int c) */
SEC("fentry.multi/bpf_testmod_test_struct_arg_1") int reads_struct_a(u64 *ctx)
{
	struct_a += ctx[0] == 2 && ctx[1] == 3;
	return 0;
}

/* int (int a, S2 b, int c) */
SEC("fentry.multi/bpf_testmod_test_struct_arg_2") int reads_a_and_struct(u64 *ctx)
{
	struct_a_b += (int)ctx[0] == 1 && ctx[1] == 2 && ctx[2] == 3;
	return 0;
}

SEC("fentry.multi/bpf_testmod_test_struct_arg_1") int reads_third(u64 *ctx)
{
	third_only += (int)ctx[3] == 4;
	return 0;
}

SEC("fexit.multi/bpf_testmod_test_struct_arg_1") int reads_ret(u64 *ctx)
{
	with_ret += (int)ctx[4] == 10;
	return 0;
}

SEC("fexit.multi/bpf_testmod_test_struct_arg_2") int reads_all_and_ret(u64 *ctx)
{
	with_all += (int)ctx[0] == 1 && ctx[1] == 2 && ctx[2] == 3 && (int)ctx[4] == 10;
	return 0;
}

SEC("fmod_ret.multi/bpf_modify_return_test") PROG(passes, int a, int *b, int ret)
{
	return ret;
}

LICENSE("GPL");
