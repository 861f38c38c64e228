/* Made into sum.o by: gcc -c -O2 -mcmodel=kernel -mno-red-zone -fno-pic -fcf-protection=branch -pg -mfentry sum.c */

__attribute__((noinline)) int add(int a, int b)
{
	return a + b;
}

long sum_to(int n)
{
	long sum = 0;

	for (int i = 1; i <= n; i++)
		sum = add(sum, i);
	return sum;
}
