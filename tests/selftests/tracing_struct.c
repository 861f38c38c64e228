/* Structs passed by value: in one or two registers, or on the stack; each 8 bytes of them are a slot of the context. */
#include "tramp_bpf.h"

u64 entered[10], left[10], slots1, slots1_seen[4];
u64 pointed_to;

struct bpf_testmod_struct_arg_3 {
	int a;
	int b[];
};

SEC("fentry/bpf_testmod_test_struct_arg_1") int entry1(u64 *ctx)
{
	u64 value = 0;

	entered[1] += ctx[0] == 2 && ctx[1] == 3 && (int)ctx[2] == 1 && (int)ctx[3] == 4;
	slots1 = bpf_get_func_arg_cnt(ctx);
	for (int i = 0; i < 4; i++) {
		bpf_get_func_arg(ctx, i, &value);
		slots1_seen[i] = i < 2 ? value : (u32)value;
	}
	return 0;
}

SEC("fexit/bpf_testmod_test_struct_arg_1") int exit1(u64 *ctx)
{
	left[1] += ctx[0] == 2 && ctx[1] == 3 && (int)ctx[2] == 1 && (int)ctx[3] == 4 && (int)ctx[4] == 10;
	return 0;
}

SEC("fentry/bpf_testmod_test_struct_arg_2") int entry2(u64 *ctx)
{
	entered[2] += (int)ctx[0] == 1 && ctx[1] == 2 && ctx[2] == 3 && (int)ctx[3] == 4;
	return 0;
}

SEC("fexit/bpf_testmod_test_struct_arg_2") int exit2(u64 *ctx)
{
	left[2] += ctx[1] == 2 && ctx[2] == 3 && (int)ctx[4] == 10;
	return 0;
}

SEC("fentry/bpf_testmod_test_struct_arg_3") int entry3(u64 *ctx)
{
	entered[3] += (int)ctx[0] == 1 && (int)ctx[1] == 4 && ctx[2] == 2 && ctx[3] == 3;
	return 0;
}

SEC("fexit/bpf_testmod_test_struct_arg_3") int exit3(u64 *ctx)
{
	left[3] += ctx[2] == 2 && ctx[3] == 3 && (int)ctx[4] == 10;
	return 0;
}

SEC("fentry/bpf_testmod_test_struct_arg_4") int entry4(u64 *ctx)
{
	entered[4] += (int)ctx[0] == 10 && (int)ctx[1] == 1 && (int)ctx[2] == 2 && (int)ctx[3] == 3 && ctx[4] == 2 &&
		      ctx[5] == 3;
	return 0;
}

SEC("fexit/bpf_testmod_test_struct_arg_4") int exit4(u64 *ctx)
{
	left[4] += (int)ctx[0] == 10 && ctx[4] == 2 && ctx[5] == 3 && (int)ctx[6] == 21;
	return 0;
}

SEC("fentry/bpf_testmod_test_struct_arg_5") int entry5(u64 *ctx)
{
	entered[5] += bpf_get_func_arg_cnt(ctx) == 0;
	return 0;
}

SEC("fexit/bpf_testmod_test_struct_arg_5") int exit5(u64 *ctx)
{
	left[5] += (int)ctx[0] == 1;
	return 0;
}

SEC("fentry/bpf_testmod_test_struct_arg_6") PROG(entry6, struct bpf_testmod_struct_arg_3 *a)
{
	int first = 0;

	/* Read with a helper: a module's types are in a BTF of its own. */
	bpf_probe_read_kernel(&first, sizeof(first), &a->b[0]);
	pointed_to = first;
	entered[6]++;
	return 0;
}

SEC("fexit/bpf_testmod_test_struct_arg_6") int exit6(u64 *ctx)
{
	left[6] += (int)ctx[1] == 1;
	return 0;
}

SEC("fentry/bpf_testmod_test_struct_arg_7") int entry7(u64 *ctx)
{
	entered[7] += ctx[0] == 16 && ctx[1] == 17 && (short)ctx[2] == 18 && (int)ctx[3] == 19 && ctx[4] == 20 &&
		      ctx[5] == 21 && (int)ctx[6] == 22;
	return 0;
}

SEC("fexit/bpf_testmod_test_struct_arg_7") int exit7(u64 *ctx)
{
	left[7] += ctx[5] == 21 && (int)ctx[6] == 22 && (int)ctx[7] == 133;
	return 0;
}

SEC("fentry/bpf_testmod_test_struct_arg_8") int entry8(u64 *ctx)
{
	entered[8] += ctx[0] == 16 && ctx[1] == 17 && (short)ctx[2] == 18 && (int)ctx[3] == 19 && ctx[4] == 20 &&
		      ctx[5] == 21 && (int)ctx[6] == 22 && (int)ctx[7] == 23;
	return 0;
}

SEC("fexit/bpf_testmod_test_struct_arg_8") int exit8(u64 *ctx)
{
	left[8] += ctx[5] == 21 && (int)ctx[7] == 23 && (int)ctx[8] == 156;
	return 0;
}

/* char a; short b; int c; long d: the first three share 8 bytes. */
SEC("fentry/bpf_testmod_test_struct_arg_9") int entry9(u64 *ctx)
{
	u64 h = ctx[7];

	entered[9] += ctx[0] == 16 && (char)ctx[5] == 21 && (short)ctx[6] == 22 && (char)h == 23 &&
		      (short)(h >> 16) == 24 && (int)(h >> 32) == 25 && ctx[8] == 26 && ctx[9] == 27;
	return 0;
}

SEC("fexit/bpf_testmod_test_struct_arg_9") int exit9(u64 *ctx)
{
	left[9] += ctx[8] == 26 && ctx[9] == 27 && (int)ctx[10] == 258;
	return 0;
}

LICENSE("GPL");
