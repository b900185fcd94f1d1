// SPDX-License-Identifier: MIT OR Apache-2.0

/* What passing a small call on costs: the same calls by their MPI_ and their PMPI_ names, in turns
 * in one run. With libcopy_mpi.so preloaded, the first are its own. Prints, for each function, the
 * nanoseconds of a call either way: the lower quartile of blocks of calls, at rank 0.
 *
 *     mpicc -O2 -o overhead ffi/mpi/tests/overhead.c
 *     mpirun -n 2 env LD_PRELOAD=target/release/libcopy_mpi.so ./overhead
 *
 * usage: overhead [BLOCKS [NAME]]     NAME: this function only
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CALLS = 500, BYTES = 8, MOST_RANKS = 64, MOST_BLOCKS = 1000 };

static char send[BYTES * MOST_RANKS], recv[BYTES * MOST_RANKS];
static int counts[MOST_RANKS], places[MOST_RANKS];
static MPI_Datatype types[MOST_RANKS];

#define WORLD MPI_COMM_WORLD
#define BOTH(name, function, ...)                                                              \
	static void name(int ours)                                                             \
	{                                                                                      \
		if (ours)                                                                      \
			MPI_##function(__VA_ARGS__);                                           \
		else                                                                           \
			PMPI_##function(__VA_ARGS__);                                          \
	}

BOTH(bcast, Bcast, recv, BYTES, MPI_BYTE, 0, WORLD)
BOTH(gather, Gather, send, BYTES, MPI_BYTE, recv, BYTES, MPI_BYTE, 0, WORLD)
BOTH(scatter, Scatter, send, BYTES, MPI_BYTE, recv, BYTES, MPI_BYTE, 0, WORLD)
BOTH(allgather, Allgather, send, BYTES, MPI_BYTE, recv, BYTES, MPI_BYTE, WORLD)
BOTH(alltoall, Alltoall, send, BYTES, MPI_BYTE, recv, BYTES, MPI_BYTE, WORLD)
BOTH(reduce, Reduce, send, recv, 1, MPI_DOUBLE, MPI_SUM, 0, WORLD)
BOTH(allreduce, Allreduce, send, recv, 1, MPI_DOUBLE, MPI_SUM, WORLD)
BOTH(reduce_scatter, Reduce_scatter, send, recv, counts, MPI_BYTE, MPI_BOR, WORLD)
BOTH(reduce_scatter_block, Reduce_scatter_block, send, recv, BYTES, MPI_BYTE, MPI_BOR, WORLD)
BOTH(gatherv, Gatherv, send, BYTES, MPI_BYTE, recv, counts, places, MPI_BYTE, 0, WORLD)
BOTH(scatterv, Scatterv, send, counts, places, MPI_BYTE, recv, BYTES, MPI_BYTE, 0, WORLD)
BOTH(allgatherv, Allgatherv, send, BYTES, MPI_BYTE, recv, counts, places, MPI_BYTE, WORLD)
BOTH(alltoallv, Alltoallv, send, counts, places, MPI_BYTE, recv, counts, places, MPI_BYTE, WORLD)
BOTH(alltoallw, Alltoallw, send, counts, places, types, recv, counts, places, types, WORLD)

#define CALL(ours, function, ...) ((ours) ? MPI_##function(__VA_ARGS__) : PMPI_##function(__VA_ARGS__))

static int rank;

/* Messages there and back between the first two ranks; the time is that of both. */
static void send_recv(int ours)
{
	if (rank == 0)
		CALL(ours, Send, send, BYTES, MPI_BYTE, 1, 0, WORLD);
	if (rank < 2)
		CALL(ours, Recv, recv, BYTES, MPI_BYTE, 1 - rank, 0, WORLD, MPI_STATUS_IGNORE);
	if (rank == 1)
		CALL(ours, Send, send, BYTES, MPI_BYTE, 0, 0, WORLD);
}

static void isend_irecv(int ours)
{
	MPI_Request requests[2];
	if (rank > 1)
		return;
	CALL(ours, Irecv, recv, BYTES, MPI_BYTE, 1 - rank, 0, WORLD, &requests[0]);
	CALL(ours, Isend, send, BYTES, MPI_BYTE, 1 - rank, 0, WORLD, &requests[1]);
	CALL(ours, Wait, &requests[0], MPI_STATUS_IGNORE);
	CALL(ours, Wait, &requests[1], MPI_STATUS_IGNORE);
}

static void sendrecv(int ours)
{
	if (rank < 2)
		CALL(ours, Sendrecv, send, BYTES, MPI_BYTE, 1 - rank, 0, recv, BYTES, MPI_BYTE,
		     1 - rank, 0, WORLD, MPI_STATUS_IGNORE);
}

static const struct {
	const char *name;
	void (*call)(int);
} functions[] = {
	{ "bcast", bcast },		{ "gather", gather },
	{ "scatter", scatter },		{ "allgather", allgather },
	{ "alltoall", alltoall },	{ "reduce", reduce },
	{ "allreduce", allreduce },	{ "reduce_scatter", reduce_scatter },
	{ "reduce_scatter_block", reduce_scatter_block },
	{ "gatherv", gatherv },		{ "scatterv", scatterv },
	{ "allgatherv", allgatherv },	{ "alltoallv", alltoallv },
	{ "alltoallw", alltoallw },	{ "send_recv", send_recv },
	{ "isend_irecv_wait", isend_irecv }, { "sendrecv", sendrecv },
};

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
	static double times[2][MOST_BLOCKS];
	int size, blocks = argc > 1 ? atoi(argv[1]) : 200;
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(WORLD, &rank);
	MPI_Comm_size(WORLD, &size);
	if (size > MOST_RANKS || blocks < 1 || blocks > MOST_BLOCKS)
		MPI_Abort(WORLD, 2);
	for (int i = 0; i < size; i++) {
		counts[i] = BYTES;
		places[i] = i * BYTES;
		types[i] = MPI_BYTE;
	}
	for (size_t f = 0; f < sizeof(functions) / sizeof(functions[0]); f++) {
		if (argc > 2 && strcmp(argv[2], functions[f].name))
			continue;
		for (int block = -2; block < 2 * blocks; block++) {
			int ours = block & 1;
			PMPI_Barrier(WORLD);
			double start = MPI_Wtime();
			for (int i = 0; i < CALLS; i++)
				functions[f].call(ours);
			/* A rank that only sends would be ahead of the others. */
			PMPI_Barrier(WORLD);
			if (block >= 0)
				times[ours][block / 2] = (MPI_Wtime() - start) / CALLS * 1e9;
		}
		double typical[2];
		for (int ours = 0; ours < 2; ours++) {
			qsort(times[ours], blocks, sizeof(double), ascending);
			typical[ours] = times[ours][blocks / 4];
		}
		if (rank == 0)
			printf("%-21s PMPI %7.1f ns, MPI %7.1f ns, %+6.1f ns, %+5.1f %%\n",
			       functions[f].name, typical[0], typical[1], typical[1] - typical[0],
			       100 * (typical[1] / typical[0] - 1));
	}
	MPI_Finalize();
	return 0;
}
