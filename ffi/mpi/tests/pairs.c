// SPDX-License-Identifier: MIT OR Apache-2.0

/* Scatters of 80,000 bytes among pairs of ranks, all of which may run on the same two processors:
 * libcopy's where each rank has one, and the library's where ranks share them. Prints how many
 * numbers were wrong.
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
	static int sent[2][NUMBERS], received[NUMBERS];
	for (int call = 0; call < calls; call++) {
		for (int to = 0; to < 2; to++)
			for (int i = 0; i < NUMBERS; i++)
				sent[to][i] = call + to;
		MPI_Scatter(sent, NUMBERS, MPI_INT, received, NUMBERS, MPI_INT, 0, pair);
		for (int i = 0; i < NUMBERS; i++)
			wrong += received[i] != call + rank;
	}
	printf("%d wrong\n", wrong);
	MPI_Comm_free(&pair);
	MPI_Finalize();
	return 0;
}
