// SPDX-License-Identifier: MIT OR Apache-2.0

/* What passing a small call on costs: the same calls by their MPI_ and their PMPI_ names, in turns
 * in one run. With libcopy_mpi.so preloaded, the first are its own. Prints, for each function, the
 * nanoseconds of a call either way: the lower quartile of blocks of calls, at rank 0.
 *
 *     mpicc -O2 -o overhead ffi/mpi/tests/overhead.c
 *     mpirun -n 2 env LD_PRELOAD=target/release/libcopy_mpi.so ./overhead
 *
 * usage: overhead [BLOCKS [NAME]]     NAME: this function only
 *        overhead count NAME CALLS
 *
 * count: calls it by its MPI_ name only, so often, and prints nothing. What valgrind counts for two
 * numbers of calls differs by what these calls cost.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CALLS = 500, BYTES = 8, MOST_RANKS = 64, MOST_BLOCKS = 1000, LONG = 16384, PENDING = 8 };

static char send[BYTES * MOST_RANKS], recv[BYTES * MOST_RANKS];
/* Longer than short calls that are intercepted, and shorter than long ones. */
static char buffer[LONG];
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
BOTH(long_bcast, Bcast, buffer, LONG, MPI_BYTE, 0, WORLD)
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

/* Receives that nothing comes for until the end. */
static MPI_Request pending[PENDING];
static int has_pending;

static void expect(void)
{
	for (int i = 0; !has_pending && i < PENDING; i++)
		MPI_Irecv(&recv[i], 1, MPI_BYTE, rank, 1 + i, WORLD, &pending[i]);
	has_pending = 1;
}

static void test(int ours)
{
	int flag;
	expect();
	CALL(ours, Test, pending, &flag, MPI_STATUS_IGNORE);
}

static void testany(int ours)
{
	int index, flag;
	expect();
	CALL(ours, Testany, PENDING, pending, &index, &flag, MPI_STATUS_IGNORE);
}

static void testall(int ours)
{
	int flag;
	expect();
	CALL(ours, Testall, PENDING, pending, &flag, MPI_STATUSES_IGNORE);
}

/* As BLACS packs: with a type that is used once. */
static void fresh_pack(int ours)
{
	MPI_Datatype type;
	int position = 0;
	MPI_Type_vector(8, 8, 16, MPI_BYTE, &type);
	MPI_Type_commit(&type);
	CALL(ours, Pack, send, 1, type, buffer, LONG, &position, WORLD);
	CALL(ours, Type_free, &type);
}

/* The same that is sent there. */
static void fresh_send(int ours)
{
	MPI_Datatype type;
	MPI_Type_vector(8, 8, 16, MPI_BYTE, &type);
	MPI_Type_commit(&type);
	if (rank == 0)
		CALL(ours, Send, send, 1, type, 1, 0, WORLD);
	if (rank == 1)
		CALL(ours, Recv, recv, 1, type, 0, 0, WORLD, MPI_STATUS_IGNORE);
	CALL(ours, Type_free, &type);
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
	{ "long_bcast", long_bcast },	{ "test", test },
	{ "testany", testany },		{ "testall", testall },
	{ "fresh_pack", fresh_pack },	{ "fresh_send", fresh_send },
};

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
	static double times[2][MOST_BLOCKS];
	const char *name = argc > 2 ? argv[2] : NULL;
	int size, counted = argc > 3 && !strcmp(argv[1], "count") ? atoi(argv[3]) : -1;
	int blocks = counted < 0 && argc > 1 ? atoi(argv[1]) : 200;
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
		if (name && strcmp(name, functions[f].name))
			continue;
		for (int i = 0; i < counted; i++)
			functions[f].call(1);
		if (counted >= 0)
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
	for (int i = 0; has_pending && i < PENDING; i++)
		MPI_Send(&send[i], 1, MPI_BYTE, rank, 1 + i, WORLD);
	if (has_pending)
		MPI_Waitall(PENDING, pending, MPI_STATUSES_IGNORE);
	MPI_Finalize();
	return 0;
}
