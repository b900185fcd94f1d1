// SPDX-License-Identifier: MIT OR Apache-2.0

/* Short alltoalls among pairs of ranks, all of which may run on the same two processors; prints how
 * many numbers were wrong.
 *
 * usage: pairs CALLS
 */
#define _GNU_SOURCE
#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

enum { NUMBERS = 20000 };

/* Leaves this process the first two of its processors. */
static void share(void)
{
	cpu_set_t own, two;
	CPU_ZERO(&two);
	if (sched_getaffinity(0, sizeof own, &own))
		return;
	for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&two) < 2; cpu++)
		if (CPU_ISSET(cpu, &own))
			CPU_SET(cpu, &two);
	sched_setaffinity(0, sizeof two, &two);
}

int main(int argc, char **argv)
{
	share();
	MPI_Init(&argc, &argv);
	int calls = argc > 1 ? atoi(argv[1]) : 1, wrong = 0, world, rank;
	MPI_Comm_rank(MPI_COMM_WORLD, &world);
	MPI_Comm pair;
	MPI_Comm_split(MPI_COMM_WORLD, world / 2, world, &pair);
	MPI_Comm_rank(pair, &rank);
	static int sent[2][NUMBERS], received[2][NUMBERS];
	for (int call = 0; call < calls; call++) {
		for (int to = 0; to < 2; to++)
			for (int i = 0; i < NUMBERS; i++)
				sent[to][i] = call + 10 * rank + to;
		MPI_Alltoall(sent, NUMBERS, MPI_INT, received, NUMBERS, MPI_INT, pair);
		for (int from = 0; from < 2; from++)
			for (int i = 0; i < NUMBERS; i++)
				wrong += received[from][i] != call + 10 * from + rank;
	}
	printf("%d wrong\n", wrong);
	MPI_Comm_free(&pair);
	MPI_Finalize();
	return 0;
}
