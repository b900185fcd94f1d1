// SPDX-License-Identifier: MIT OR Apache-2.0

/* Two ranks send long messages to each other at the same time, with MPI_Sendrecv and with requests, after other work
 * that takes a random time. Prints how many messages were wrong. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "random.h"

enum { BYTES = 1 << 20, ROUNDS = 150, TAG = 3 };

static void fill(unsigned char *bytes, int seed)
{
	for (int i = 0; i < BYTES; i++)
		bytes[i] = (unsigned char)(i * 7 + i / 251 + seed);
}

int main(int argc, char **argv)
{
	int rank;
	int wrong = 0;
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	state = 5 + rank;
	unsigned char *out = malloc(BYTES), *in = calloc(1, BYTES), *expected = malloc(BYTES);
	for (int round = 0; round < ROUNDS; round++) {
		fill(out, round + rank);
		fill(expected, round + 1 - rank);
		memset(in, 0, next(BYTES));
		if (round % 2) {
			MPI_Sendrecv(out, BYTES, MPI_BYTE, 1 - rank, TAG, in, BYTES, MPI_BYTE, 1 - rank, TAG,
				     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		} else {
			MPI_Request requests[2];
			MPI_Status statuses[2];
			MPI_Irecv(in, BYTES, MPI_BYTE, 1 - rank, TAG, MPI_COMM_WORLD, &requests[0]);
			MPI_Isend(out, BYTES, MPI_BYTE, 1 - rank, TAG, MPI_COMM_WORLD, &requests[1]);
			MPI_Waitall(2, requests, statuses);
		}
		wrong += hash(in, BYTES) != hash(expected, BYTES);
	}
	MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
	if (rank == 0)
		printf("%d exchanges: %d wrong\n", ROUNDS, wrong);
	free(out);
	free(in);
	free(expected);
	MPI_Finalize();
	return 0;
}
