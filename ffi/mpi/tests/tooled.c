// SPDX-License-Identifier: MIT OR Apache-2.0

/* Messages and collectives that libcopy_mpi.so intercepts, completed by the functions that tools
 * wrap. Prints how many elements arrived wrong.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { MANY = 1 << 18 };

static long wrong;

/* In a program at a fixed address, taking an address makes an entry of the program's own. */
static int (*volatile receive)(void *, int, MPI_Datatype, int, int, MPI_Comm, MPI_Status *) = MPI_Recv;

static void fill(int *data, int rank, int round)
{
	for (int i = 0; i < MANY; i++)
		data[i] = rank * 1000003 + round * 7919 + i;
}

static void check(const int *data, int rank, int round)
{
	for (int i = 0; i < MANY; i++)
		wrong += data[i] != rank * 1000003 + round * 7919 + i;
}

static void expect_count(MPI_Status *status)
{
	int count = -1;
	MPI_Get_count(status, MPI_INT, &count);
	wrong += count != MANY;
}

int main(int argc, char **argv)
{
	int rank, size;
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	int peer = rank ^ 1, *sent = malloc(sizeof(int) * MANY), *got = malloc(sizeof(int) * MANY);
	MPI_Status status, statuses[2];
	MPI_Request requests[2];
	for (int round = 0; round < 4; round++) {
		fill(sent, rank, round);
		if (rank % 2 == 0) {
			MPI_Send(sent, MANY, MPI_INT, peer, 1, MPI_COMM_WORLD);
			MPI_Recv(got, MANY, MPI_INT, peer, 1, MPI_COMM_WORLD, &status);
		} else {
			receive(got, MANY, MPI_INT, peer, 1, MPI_COMM_WORLD, &status);
			MPI_Send(sent, MANY, MPI_INT, peer, 1, MPI_COMM_WORLD);
		}
		check(got, peer, round);
		expect_count(&status);
		MPI_Irecv(got, MANY, MPI_INT, peer, 2, MPI_COMM_WORLD, &requests[0]);
		MPI_Isend(sent, MANY, MPI_INT, peer, 2, MPI_COMM_WORLD, &requests[1]);
		MPI_Wait(&requests[0], &status);
		expect_count(&status);
		MPI_Wait(&requests[1], MPI_STATUS_IGNORE);
		check(got, peer, round);
		for (int i = 0; i < MANY; i++)
			got[i] = -1;
		MPI_Irecv(got, MANY, MPI_INT, peer, 3, MPI_COMM_WORLD, &requests[0]);
		MPI_Isend(sent, MANY, MPI_INT, peer, 3, MPI_COMM_WORLD, &requests[1]);
		MPI_Waitall(2, requests, statuses);
		expect_count(&statuses[0]);
		check(got, peer, round);
		if (rank)
			fill(got, size, round);
		else
			fill(got, rank, round);
		MPI_Bcast(got, MANY, MPI_INT, 0, MPI_COMM_WORLD);
		check(got, 0, round);
		/* The ranks meet in the first; the later ones are intercepted. */
		if (rank)
			fill(got, size, round);
		MPI_Ibcast(got, MANY, MPI_INT, 0, MPI_COMM_WORLD, &requests[0]);
		MPI_Wait(&requests[0], MPI_STATUS_IGNORE);
		check(got, 0, round);
		MPI_Barrier(MPI_COMM_WORLD);
	}
	printf("rank %d wrong %ld\n", rank, wrong);
	fflush(stdout);
	MPI_Finalize();
	return wrong != 0;
}
