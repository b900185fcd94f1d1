// SPDX-License-Identifier: MIT OR Apache-2.0

/* Two ranks send long messages to each other at the same time, with MPI_Sendrecv and with requests,
 * after other work that takes a random time. Prints how many messages were wrong.
 *
 * usage: exchanges [late|unsafe]
 *
 * late: rank 1 comes 10 ms after rank 0, to a receive that is not posted before
 * unsafe: both send before they receive, which depends on buffering
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "random.h"

enum { BYTES = 1 << 20, ROUNDS = 150, FEW = 10, TAG = 3 };

static void fill(unsigned char *bytes, int seed)
{
	for (int i = 0; i < BYTES; i++)
		bytes[i] = (unsigned char)(i * 7 + i / 251 + seed);
}

static void send_first(const void *out, void *in, int to)
{
	MPI_Send(out, BYTES, MPI_BYTE, to, TAG, MPI_COMM_WORLD);
	MPI_Recv(in, BYTES, MPI_BYTE, to, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static void receive_first(const void *out, void *in, int to)
{
	MPI_Recv(in, BYTES, MPI_BYTE, to, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	MPI_Send(out, BYTES, MPI_BYTE, to, TAG, MPI_COMM_WORLD);
}

int main(int argc, char **argv)
{
	int rank;
	int wrong = 0;
	const int late = argc > 1 && !strcmp(argv[1], "late"), unsafe = argc > 1 && !strcmp(argv[1], "unsafe");
	const int rounds = late || unsafe ? FEW : ROUNDS;
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	state = 5 + rank;
	unsigned char *out = malloc(BYTES), *in = calloc(1, BYTES), *expected = malloc(BYTES);
	for (int round = 0; round < rounds; round++) {
		fill(out, round + rank);
		fill(expected, round + 1 - rank);
		memset(in, 0, next(BYTES));
		if (late && rank == 1)
			usleep(10000);
		if (unsafe) {
			send_first(out, in, 1 - rank);
		} else if (late && round % 2) {
			(rank ? receive_first : send_first)(out, in, 1 - rank);
		} else if (late || round % 2) {
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
		printf("%d exchanges: %d wrong\n", rounds, wrong);
	free(out);
	free(in);
	free(expected);
	MPI_Finalize();
	return 0;
}
