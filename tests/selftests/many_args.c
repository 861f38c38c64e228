/* More arguments than registers: the rest lies on the caller's stack. */
#include "tramp_bpf.h"

u64 entered7, entered11, left7, left11;

SEC("fentry/bpf_testmod_fentry_test7")
PROG(entry7, u64 a, void *b, short c, int d, void *e, char f, int g)
{
	entered7 += a == 16 && b == (void *)17 && c == 18 && d == 19 && e == (void *)20 && f == 21 && g == 22;
	return 0;
}

SEC("fentry/bpf_testmod_fentry_test11")
PROG(entry11, u64 a, void *b, short c, int d, void *e, char f, int g, unsigned int h, long i, u64 j, unsigned long k)
{
	entered11 += a == 16 && b == (void *)17 && c == 18 && d == 19 && e == (void *)20 && f == 21 && g == 22 &&
		     h == 23 && i == 24 && j == 25 && k == 26;
	return 0;
}

SEC("fexit/bpf_testmod_fentry_test7")
PROG(exit7, u64 a, void *b, short c, int d, void *e, char f, int g, int ret)
{
	left7 += a == 16 && b == (void *)17 && c == 18 && d == 19 && e == (void *)20 && f == 21 && g == 22 &&
		 ret == 133;
	return 0;
}

SEC("fexit/bpf_testmod_fentry_test11")
PROG(exit11, u64 a, void *b, short c, int d, void *e, char f, int g, unsigned int h, long i, u64 j, unsigned long k,
     int ret)
{
	left11 += a == 16 && b == (void *)17 && c == 18 && d == 19 && e == (void *)20 && f == 21 && g == 22 &&
		  h == 23 && i == 24 && j == 25 && k == 26 && ret == 231;
	return 0;
}

LICENSE("GPL");
