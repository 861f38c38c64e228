/* What the programs here are written with: sections, map declarations, helpers by their number, arguments by name.
 * Written for tramplab; nothing is copied from the kernel's or libbpf's headers. */
#ifndef TRAMP_BPF_H
#define TRAMP_BPF_H

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed short s16;
typedef signed int s32;
typedef signed long long s64;
typedef _Bool bool;

#define NULL ((void *)0)
#define EINVAL 22
#define EOPNOTSUPP 95

#define SEC(name) __attribute__((section(name), used))
#define LICENSE(text) char program_license[] SEC("license") = text
#define noinline __attribute__((noinline))
#define inlined static inline __attribute__((always_inline))
#define weak __attribute__((weak))
#define hidden __attribute__((visibility("hidden")))
#define kernel_type __attribute__((preserve_access_index))
#define from_kernel __attribute__((section(".ksyms")))
#define from_kconfig __attribute__((section(".kconfig")))

/* In a map's struct: a number is the length of an array, a type what is pointed to. */
#define __uint(name, number) int(*name)[number]
#define __type(name, type) __typeof__(type) *name
#define __array(name, type) __typeof__(type) *name[]

enum { MAP_HASH = 1, MAP_ARRAY = 2, MAP_PROG_ARRAY = 3, MAP_PERCPU_ARRAY = 6, MAP_ARRAY_OF_MAPS = 12, MAP_RINGBUF = 27 };

/* include/uapi/linux/bpf.h numbers the helpers. */
static void *(*const bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*const bpf_map_update_elem)(void *map, const void *key, const void *value, u64 flags) = (void *)2;
static long (*const bpf_map_delete_elem)(void *map, const void *key) = (void *)3;
static u64 (*const bpf_ktime_get_ns)(void) = (void *)5;
static long (*const bpf_tail_call)(void *ctx, void *map, u32 index) = (void *)12;
static long (*const bpf_probe_read_kernel)(void *to, u32 size, const void *from) = (void *)113;
static void *(*const bpf_ringbuf_reserve)(void *map, u64 size, u64 flags) = (void *)131;
static void (*const bpf_ringbuf_submit)(void *data, u64 flags) = (void *)132;
static void (*const bpf_ringbuf_discard)(void *data, u64 flags) = (void *)133;
static long (*const bpf_for_each_map_elem)(void *map, void *function, void *context, u64 flags) = (void *)164;
static u64 (*const bpf_get_func_ip)(void *ctx) = (void *)173;
static u64 (*const bpf_get_attach_cookie)(void *ctx) = (void *)174;
static long (*const bpf_loop)(u32 count, void *function, void *context, u64 flags) = (void *)181;
static long (*const bpf_get_func_arg)(void *ctx, u32 n, u64 *value) = (void *)183;
static long (*const bpf_get_func_ret)(void *ctx, u64 *value) = (void *)184;
static long (*const bpf_get_func_arg_cnt)(void *ctx) = (void *)185;
static long (*const bpf_trace_printk)(const char *format, u32 size, ...) = (void *)6;

#define bpf_printk(text, ...)                                                   \
	({                                                                      \
		static const char format[] = text;                              \
		bpf_trace_printk(format, sizeof(format), ##__VA_ARGS__);        \
	})

/* PROG(name, type a, ...): a program whose arguments are read from its context, 8 bytes each, in this order. */
#define PROG(name, ...)                                                                    \
	int name(u64 *ctx); /* what SEC() before it is said of */                          \
	_Pragma("clang diagnostic push")                                                   \
	_Pragma("clang diagnostic ignored \"-Wint-conversion\"")                           \
	inlined int name##_body(u64 *ctx, ##__VA_ARGS__);                                  \
	int name(u64 *ctx)                                                                 \
	{                                                                                  \
		return name##_body(PASS(ctx, ##__VA_ARGS__));                              \
	}                                                                                  \
	_Pragma("clang diagnostic pop")                                                    \
	inlined int name##_body(u64 *ctx, ##__VA_ARGS__)

#define PASS(...) PASS_(COUNT(__VA_ARGS__))
#define PASS_(count) PASS__(count)
#define PASS__(count) PASS_##count
#define COUNT(...) COUNT_(__VA_ARGS__, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0)
#define COUNT_(c, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, n, ...) n
#define PASS_0 ctx
#define PASS_1 PASS_0, ctx[0]
#define PASS_2 PASS_1, ctx[1]
#define PASS_3 PASS_2, ctx[2]
#define PASS_4 PASS_3, ctx[3]
#define PASS_5 PASS_4, ctx[4]
#define PASS_6 PASS_5, ctx[5]
#define PASS_7 PASS_6, ctx[6]
#define PASS_8 PASS_7, ctx[7]
#define PASS_9 PASS_8, ctx[8]
#define PASS_10 PASS_9, ctx[9]
#define PASS_11 PASS_10, ctx[10]
#define PASS_12 PASS_11, ctx[11]

/* The kernel's own, as far as it is read here; where its fields are is settled when the program is loaded. */
struct bpf_fentry_test_t {
	struct bpf_fentry_test_t *a;
} kernel_type;

#endif
