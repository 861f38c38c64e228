/* Watches a function with several arguments: each call becomes a record in a ring buffer and a line of trace output,
 * and is counted by what was returned.
 *
 * Compiled by `make` in tests/selftests, whose header it uses; the object is committed. */
#include "../tests/selftests/tramp_bpf.h"

struct call {
	u64 number;
	u64 function;
	u64 a;
	u64 b;
	s32 c;
	s32 d;
	s32 ret;
	u32 unused;
};

struct {
	__uint(type, MAP_RINGBUF);
	__uint(max_entries, 4096);
} calls SEC(".maps");

struct {
	__uint(type, MAP_HASH);
	__uint(max_entries, 64);
	__type(key, s32);
	__type(value, u64);
} by_result SEC(".maps");

const volatile s32 at_least = 0; /* results below are not recorded */
u64 seen, recorded, dropped;

static noinline void count(s32 ret)
{
	u64 one = 1, *times = bpf_map_lookup_elem(&by_result, &ret);

	if (times)
		__sync_fetch_and_add(times, 1);
	else
		bpf_map_update_elem(&by_result, &ret, &one, 0);
}

SEC("fexit/bpf_fentry_test5") PROG(watch, u64 a, void *b, short c, int d, u64 e, int ret)
{
	struct call *call;

	seen++;
	count(ret);
	if (ret < at_least)
		return 0;
	bpf_printk("call %llu: a=%llu ret=%d", seen, a, ret);
	call = bpf_ringbuf_reserve(&calls, sizeof(*call), 0);
	if (!call) {
		dropped++;
		return 0;
	}
	call->number = seen;
	call->function = bpf_get_func_ip(ctx);
	call->a = a;
	call->b = (u64)b;
	call->c = c;
	call->d = d;
	call->ret = ret;
	call->unused = 0;
	bpf_ringbuf_submit(call, 0);
	recorded++;
	return 0;
}

LICENSE("GPL");
