// SPDX-License-Identifier: MIT OR Apache-2.0

/* What passing a small call on costs: the same calls by their MPI_ and their PMPI_ names, in turns
 * in one run. With libcopy_mpi.so preloaded, the first are its own. Prints, for each function, the
 * nanoseconds of a call either way: the lower quartile of blocks of calls, at rank 0.
 *
 *     mpicc -O2 -o overhead ffi/mpi/tests/overhead.c
 *     mpirun -n 2 env LD_PRELOAD=target/release/libcopy_mpi.so ./overhead
 *
 * usage: overhead [BLOCKS [NAME]]     NAME: this function only
 *        overhead count NAME[,NAME...] CALLS
 *
 * count: calls these by their MPI_ names only, so often each, and prints nothing. What valgrind
 * counts for two numbers of calls differs by what these calls cost; or it counts what counted()
 * does, which comes once for each function: instructions.rs has it do so.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CALLS = 500, FIRST = 50, BYTES = 8, MOST_RANKS = 64, MOST_BLOCKS = 1000, LONG = 16384, PENDING = 8 };

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
	MPI_Status statuses[PENDING];
	int flag;
	expect();
	CALL(ours, Testall, PENDING, pending, &flag, statuses);
}

/* A long receive that nothing comes for until the end, while a long send has not ended, either: as
 * HPCC's MPIRandomAccess has it all the time. */
enum { BETWEEN = 8192, OURS = 200, THEIRS = 201 };
static char between[2][BETWEEN];
static MPI_Request beside[2];
static int has_beside;

static void test_beside_send(int ours)
{
	int flag;
	if (!has_beside && rank < 2) {
		MPI_Irecv(between[0], BETWEEN, MPI_BYTE, rank, OURS, WORLD, &beside[0]);
		MPI_Isend(between[1], BETWEEN, MPI_BYTE, 1 - rank, THEIRS, WORLD, &beside[1]);
		has_beside = 1;
	}
	CALL(ours, Test, &beside[0], &flag, MPI_STATUS_IGNORE);
}

static void end_beside(void)
{
	if (!has_beside)
		return;
	MPI_Send(buffer, BETWEEN, MPI_BYTE, rank, OURS, WORLD);
	MPI_Recv(buffer, BETWEEN, MPI_BYTE, 1 - rank, THEIRS, WORLD, MPI_STATUS_IGNORE);
	for (int i = 0; i < 2; i++)
		MPI_Wait(&beside[i], MPI_STATUS_IGNORE);
}

/* A halo's. */
static void sendrecv_512(int ours)
{
	if (rank < 2)
		CALL(ours, Sendrecv, buffer, 512, MPI_BYTE, 1 - rank, 0, buffer + 512, 512, MPI_BYTE,
		     1 - rank, 0, WORLD, MPI_STATUS_IGNORE);
}

static void waitall_512(int ours)
{
	MPI_Request requests[2];
	MPI_Status statuses[2];
	if (rank > 1)
		return;
	CALL(ours, Irecv, buffer + 512, 512, MPI_BYTE, 1 - rank, 0, WORLD, &requests[0]);
	CALL(ours, Isend, buffer, 512, MPI_BYTE, 1 - rank, 0, WORLD, &requests[1]);
	CALL(ours, Waitall, 2, requests, statuses);
}

static void iprobe(int ours)
{
	MPI_Status status;
	int flag;
	CALL(ours, Iprobe, MPI_ANY_SOURCE, THEIRS + 1, WORLD, &flag, &status);
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
	{ "sendrecv_512", sendrecv_512 }, { "waitall_512", waitall_512 },
	{ "iprobe", iprobe },		{ "test_beside_send", test_beside_send },
};

__attribute__((noinline)) static void counted(void (*call)(int), int calls)
{
	for (int i = 0; i < calls; i++)
		call(1);
}

/* Whether a name is in a list with commas. */
static int is_in(const char *list, const char *name)
{
	size_t length = strlen(name);
	for (const char *at = list; (at = strstr(at, name)); at += length)
		if ((at == list || at[-1] == ',') && (!at[length] || at[length] == ','))
			return 1;
	return 0;
}

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
	static double times[2][MOST_BLOCKS];
	const char *name = argc > 2 ? argv[2] : NULL;
	int size, calls = argc > 3 && !strcmp(argv[1], "count") ? atoi(argv[3]) : -1;
	int blocks = calls < 0 && argc > 1 ? atoi(argv[1]) : 200;
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
		if (name && !is_in(name, functions[f].name))
			continue;
		if (calls >= 0) {
			/* What the first ones find out costs more. */
			for (int i = 0; i < FIRST; i++)
				functions[f].call(1);
			PMPI_Barrier(WORLD);
			counted(functions[f].call, calls);
			PMPI_Barrier(WORLD);
			continue;
		}
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
	end_beside();
	for (int i = 0; has_pending && i < PENDING; i++)
		MPI_Send(&send[i], 1, MPI_BYTE, rank, 1 + i, WORLD);
	for (int i = 0; has_pending && i < PENDING; i++)
		MPI_Wait(&pending[i], MPI_STATUS_IGNORE);
	MPI_Finalize();
	return 0;
}
