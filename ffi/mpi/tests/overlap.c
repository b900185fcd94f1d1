// SPDX-License-Identifier: MIT OR Apache-2.0

/* Nonblocking collectives of two or more ranks that compute before they wait: how many of the parts
 * were there before anybody waited, and how long the operation and the computation took together.
 * Prints whether every byte is right.
 *
 * usage: overlap BYTES ROUNDS MILLISECONDS
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static unsigned char value(size_t i, int round, int rank)
{
	return i * 7 + i / 253 + round * 31 + rank * 101;
}

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	int rank, size, rounds = argc > 2 ? atoi(argv[2]) : 10;
	size_t bytes = argc > 1 ? strtoul(argv[1], NULL, 10) : 1 << 20;
	double pause = (argc > 3 ? atof(argv[3]) : 20) / 1000;
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	unsigned char *from = malloc(bytes), *to = malloc(bytes * size);
	long there = 0, wrong = 0, all[2], mine[2];
	double took = 0;
	for (int round = 0; round < rounds; round++) {
		MPI_Request request;
		for (size_t i = 0; i < bytes; i++)
			from[i] = value(i, round, rank);
		memset(to, 0xee, bytes * size);
		for (int other = 0; other < size; other++)
			to[other * bytes + bytes - 1] = ~value(bytes - 1, round, other);
		MPI_Barrier(MPI_COMM_WORLD);
		double start = MPI_Wtime();
		MPI_Iallgather(from, bytes, MPI_BYTE, to, bytes, MPI_BYTE, MPI_COMM_WORLD, &request);
		while (MPI_Wtime() < start + pause) {
		}
		/* A program may not look; this one wants to know. */
		for (int other = 0; other < size; other++) {
			volatile unsigned char *last = to + other * bytes + bytes - 1;
			there += other != rank && *last == value(bytes - 1, round, other);
		}
		MPI_Wait(&request, MPI_STATUS_IGNORE);
		took += MPI_Wtime() - start;
		for (int other = 0; other < size; other++)
			for (size_t i = 0; i < bytes; i++)
				wrong += to[other * bytes + i] != value(i, round, other);
	}
	mine[0] = there;
	mine[1] = wrong;
	MPI_Reduce(mine, all, 2, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
	if (rank == 0)
		printf("there before anybody waited: %ld of %d; %.2f ms, of which %.2f computed; wrong %ld\n",
		       all[0], rounds * size * (size - 1), took / rounds * 1e3, pause * 1e3, all[1]);
	MPI_Finalize();
	return 0;
}
