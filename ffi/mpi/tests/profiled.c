// SPDX-License-Identifier: MIT OR Apache-2.0

/* Calls of which each is known: what the profiler counts has to be these. Rank 1 comes later than
 * rank 0 to every fourth allreduce, by a time that is known, and to a message.
 *
 * usage: profiled
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { CALLS = 40, LATE_NS = 5000000, COLUMNS = 64 };

static double send[2 * COLUMNS * COLUMNS], recv[2 * COLUMNS * COLUMNS];

static void late(int rank, int late)
{
	if (rank == late) {
		struct timespec time = {0, LATE_NS};

		nanosleep(&time, NULL);
	}
}

int main(int argc, char **argv)
{
	int rank, size, flag, index;
	int counts[2] = {3, 5}, places[2] = {0, 3};
	MPI_Comm copy, alone;
	MPI_Datatype column;
	MPI_Request requests[6];
	MPI_Status statuses[6];

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	if (size != 2)
		MPI_Abort(MPI_COMM_WORLD, 1);

	/* Collectives: a part of 1 KiB, or 8 bytes. */
	for (int i = 0; i < CALLS; i++) {
		late(rank, i % 4 ? -1 : 1);
		MPI_Allreduce(send, recv, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
	}
	MPI_Bcast(recv, 128, MPI_DOUBLE, 1, MPI_COMM_WORLD);
	MPI_Allgather(send, 128, MPI_DOUBLE, recv, 128, MPI_DOUBLE, MPI_COMM_WORLD);
	MPI_Gatherv(send, counts[rank], MPI_DOUBLE, recv, counts, places, MPI_DOUBLE, 0, MPI_COMM_WORLD);

	/* The same handle for other communicators: nothing of the first is said of the second. */
	MPI_Comm_dup(MPI_COMM_WORLD, &copy);
	MPI_Barrier(copy);
	MPI_Comm_free(&copy);
	MPI_Comm_split(MPI_COMM_WORLD, rank, 0, &alone);
	MPI_Allreduce(send, recv, 1, MPI_DOUBLE, MPI_SUM, alone);
	MPI_Comm_free(&alone);

	/* Messages: a column of a matrix, and dense ones. */
	MPI_Type_vector(COLUMNS, 1, COLUMNS, MPI_DOUBLE, &column);
	MPI_Type_commit(&column);
	for (int i = 0; i < CALLS; i++) {
		MPI_Irecv(recv, 1, column, 1 - rank, 0, MPI_COMM_WORLD, &requests[0]);
		MPI_Isend(send, 1, column, 1 - rank, 0, MPI_COMM_WORLD, &requests[1]);
		MPI_Waitall(2, requests, statuses);
	}
	MPI_Type_free(&column);
	/* Nor of a type with the handle of the first. */
	MPI_Type_contiguous(COLUMNS, MPI_DOUBLE, &column);
	MPI_Type_commit(&column);
	for (int i = 0; i < CALLS; i++) {
		if (rank == 0) {
			MPI_Send(send, 2, column, 1, 1, MPI_COMM_WORLD);
		} else {
			MPI_Recv(recv, 2, column, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		}
	}
	MPI_Type_free(&column);

	/* Short ones, of which some libraries give all sends one request. */
	for (int i = 0; i < 3; i++)
		MPI_Irecv(recv + i, 1, MPI_DOUBLE, 1 - rank, i, MPI_COMM_WORLD, &requests[i]);
	for (int i = 0; i < 3; i++)
		MPI_Isend(send + i, 1, MPI_DOUBLE, 1 - rank, i, MPI_COMM_WORLD, &requests[3 + i]);
	MPI_Waitall(6, requests, statuses);

	/* Requests one by one, and asked until there is one. */
	MPI_Irecv(recv, 100, MPI_BYTE, 1 - rank, 2, MPI_COMM_WORLD, &requests[0]);
	MPI_Irecv(recv + 100, 300, MPI_BYTE, 1 - rank, 3, MPI_COMM_WORLD, &requests[1]);
	MPI_Barrier(MPI_COMM_WORLD);
	MPI_Send(send, 300, MPI_BYTE, 1 - rank, 3, MPI_COMM_WORLD);
	MPI_Waitany(2, requests, &index, MPI_STATUS_IGNORE);
	if (index != 1)
		MPI_Abort(MPI_COMM_WORLD, 1);
	MPI_Barrier(MPI_COMM_WORLD);
	MPI_Send(send, 100, MPI_BYTE, 1 - rank, 2, MPI_COMM_WORLD);
	do
		MPI_Test(&requests[0], &flag, MPI_STATUS_IGNORE);
	while (!flag);

	/* A persistent request, started twice. */
	if (rank == 0)
		MPI_Send_init(send, 16, MPI_DOUBLE, 1, 4, MPI_COMM_WORLD, &requests[0]);
	else
		MPI_Recv_init(recv, 16, MPI_DOUBLE, 0, 4, MPI_COMM_WORLD, &requests[0]);
	for (int i = 0; i < 2; i++) {
		MPI_Start(&requests[0]);
		MPI_Wait(&requests[0], MPI_STATUS_IGNORE);
	}
	MPI_Request_free(&requests[0]);
	MPI_Ibarrier(MPI_COMM_WORLD, &requests[0]);
	MPI_Wait(&requests[0], MPI_STATUS_IGNORE);

	if (rank == 0)
		printf("all %d ranks done\n", size);
	MPI_Finalize();
	return 0;
}
