/* A program on the function that it makes the kernel call again is not entered again: that is a miss, and counted. */
#include "tramp_bpf.h"

struct {
	__uint(type, MAP_HASH);
	__uint(max_entries, 1);
	__type(key, int);
	__type(value, long);
} quiet SEC(".maps"), recursing SEC(".maps");

u64 quiet_deletes, recursing_deletes;

SEC("fentry/htab_map_delete_elem") PROG(on_delete, void *map)
{
	int key = 0;

	if (map == (void *)&quiet) {
		quiet_deletes++;
		return 0;
	}
	if (map == (void *)&recursing) {
		recursing_deletes++;
		bpf_map_delete_elem(&recursing, &key); /* missed */
	}
	return 0;
}

LICENSE("GPL");
