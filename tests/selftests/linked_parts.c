/* Everything that an object can refer to: each global holds what the kernel, or another part of the object, says. */
#include "tramp_bpf.h"

struct inner_map {
	__uint(type, MAP_ARRAY);
	__uint(max_entries, 2);
	__type(key, u32);
	__type(value, u64);
} inner_one SEC(".maps"), inner_two SEC(".maps");

struct {
	__uint(type, MAP_ARRAY_OF_MAPS);
	__uint(max_entries, 3);
	__type(key, u32);
	__array(values, struct inner_map);
} outer SEC(".maps") = { .values = { [0] = &inner_one, [2] = &inner_two } };

int tail(u64 *ctx);

struct {
	__uint(type, MAP_PROG_ARRAY);
	__uint(max_entries, 4);
	__uint(key_size, sizeof(u32));
	__array(values, int(u64 *ctx));
} jumps SEC(".maps") = { .values = { [1] = &tail } };

struct {
	__uint(type, MAP_RINGBUF);
	__uint(max_entries, 5000);
} ring SEC(".maps");

struct {
	__uint(type, MAP_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, 0);
	__uint(key_size, 4);
	__uint(value_size, 16);
} per_cpu SEC(".maps");

extern const int LINUX_KERNEL_VERSION from_kconfig;
extern const bool CONFIG_SMP from_kconfig weak;
extern const char CONFIG_DEFAULT_HOSTNAME[16] from_kconfig weak;
extern const u64 CONFIG_NR_CPUS from_kconfig weak;
extern void bpf_rcu_read_lock(void) from_kernel;
extern void bpf_rcu_read_unlock(void) from_kernel;
extern void bpf_no_such_function(int) from_kernel weak;
extern const void no_such_symbol from_kernel weak;
extern const void schedule from_kernel;

/* A kernel's own types, with a part of their fields; flavours of one name are other forms of the same type. */
struct task_struct {
	int pid;
	int tgid;
	char comm[16];
} kernel_type;
struct task_struct___other {
	int no_such_field;
} kernel_type;
struct no_such_struct {
	int field;
} kernel_type;
enum pid_type___mine { PIDTYPE_PGID___mine = 77, PIDTYPE_NONE___mine = 78 };
struct sk_buff {
	u16 protocol;
	u8 pkt_type : 3;
} kernel_type;

int value = 7;
const volatile int limit = 3;
u64 version, host, counted, per_task, exists, sizes, enumerator, bits, called, tail_ran, schedule_at, custom;
static u64 hidden_count;
int own_section SEC(".data.own") = 11;
const volatile u64 own_constant SEC(".rodata.own") = 12;

static noinline int add(int a, int b)
{
	hidden_count++;
	return a + b + value;
}

noinline int global_add(int a, int b)
{
	return add(a, b) + limit;
}

hidden noinline int hidden_add(int a)
{
	return global_add(a, 1);
}

static long count(u32 index, void *context)
{
	counted += index;
	return 0;
}

SEC("fentry/bpf_fentry_test1") PROG(links, int a)
{
	u32 key = 0, *kept;
	u64 *percpu, *entry;
	void *map;

	version = LINUX_KERNEL_VERSION + CONFIG_SMP + CONFIG_NR_CPUS;
	host = CONFIG_DEFAULT_HOSTNAME[0];
	called = hidden_add(a) + add(a, 2);
	bpf_loop(4, count, NULL, 0);
	bpf_rcu_read_lock();
	bpf_rcu_read_unlock();
	if (bpf_no_such_function)
		bpf_no_such_function(1);
	schedule_at = (u64)&schedule + (u64)&no_such_symbol;
	custom = own_section + own_constant;
	percpu = bpf_map_lookup_elem(&per_cpu, &key);
	if (percpu)
		*percpu += 1;
	map = bpf_map_lookup_elem(&outer, &key);
	entry = map ? bpf_map_lookup_elem(map, &key) : NULL;
	if (entry)
		*entry = 5;
	kept = bpf_ringbuf_reserve(&ring, sizeof(*kept), 0);
	if (kept) {
		*kept = a;
		bpf_ringbuf_submit(kept, 0);
	}
	bpf_tail_call(ctx, &jumps, 1);
	return 0;
}

SEC("fentry/bpf_fentry_test1") int tail(u64 *ctx)
{
	tail_ran++;
	return 0;
}

SEC("?fentry/bpf_fentry_test2") int core(u64 *ctx)
{
	struct task_struct *task = (void *)ctx[0];
	struct sk_buff *skb = (void *)ctx[0];

	per_task = task->pid;
	exists = __builtin_preserve_field_info(task->comm, 2) |
		 __builtin_preserve_field_info(((struct task_struct___other *)task)->no_such_field, 2) << 1 |
		 __builtin_preserve_type_info(*(struct no_such_struct *)0, 0) << 2 |
		 __builtin_preserve_type_info(*(struct task_struct *)0, 0) << 3 |
		 __builtin_preserve_enum_value(*(enum pid_type___mine *)PIDTYPE_PGID___mine, 0) << 4 |
		 __builtin_preserve_enum_value(*(enum pid_type___mine *)PIDTYPE_NONE___mine, 0) << 5;
	sizes = __builtin_preserve_type_info(*(struct task_struct *)0, 1);
	enumerator = __builtin_preserve_enum_value(*(enum pid_type___mine *)PIDTYPE_PGID___mine, 1);
	bits = __builtin_preserve_field_info(skb->pkt_type, 0) << 0 | __builtin_preserve_field_info(skb->pkt_type, 4) << 16 |
	       __builtin_preserve_field_info(skb->pkt_type, 5) * 0x100000000ULL;
	return 0;
}

LICENSE("GPL");
