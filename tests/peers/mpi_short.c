// SPDX-License-Identifier: MIT OR Apache-2.0

/*
 * Short collectives one after the other, as programs call them: what `scripts/bench mpi` measures
 * with --ops short.
 *
 * usage: mpi_short MILLISECONDS BYTES[,BYTES...] [BETWEEN]
 *
 * Each operation is measured with each size for MILLISECONDS; rank 0 prints a line of mpi_paired.h
 * for each: microseconds of a call. Nothing is between the calls of a block, so whoever need not
 * wait runs ahead: the root of a broadcast whose root stays the same, and the others of a reduce.
 * Of those whose name ends in -turns, ranks are the root in turn. Reductions add doubles.
 *
 * With BETWEEN, each rank writes as many bytes of other memory between two calls, as a step of a
 * program does, so that what a call finds of the library in the caches is what is left of it; then
 * the ranks meet by a counter in shared memory, and the call alone is timed.
 */
#include <sched.h>

#include "mpi_paired.h"

enum { MOST_RANKS = 256 };

static unsigned char *send, *receive;
static int rank, size, root, turns, bytes;
static unsigned char *other;
static size_t between;
/* How often a rank has come, and how often all of them have to have. */
static long *came, all_came;

static void bcast(void)
{
	CALL(Bcast, rank == root ? send : receive, bytes, MPI_BYTE, root, MPI_COMM_WORLD);
}

static void gather(void)
{
	CALL(Gather, send, bytes, MPI_BYTE, receive, bytes, MPI_BYTE, root, MPI_COMM_WORLD);
}

static void scatter(void)
{
	CALL(Scatter, send, bytes, MPI_BYTE, receive, bytes, MPI_BYTE, root, MPI_COMM_WORLD);
}

static void reduce(void)
{
	CALL(Reduce, send, receive, bytes / 8, MPI_DOUBLE, MPI_SUM, root, MPI_COMM_WORLD);
}

static void allgather(void)
{
	CALL(Allgather, send, bytes, MPI_BYTE, receive, bytes, MPI_BYTE, MPI_COMM_WORLD);
}

static void alltoall(void)
{
	CALL(Alltoall, send, bytes, MPI_BYTE, receive, bytes, MPI_BYTE, MPI_COMM_WORLD);
}

static void allreduce(void)
{
	CALL(Allreduce, send, receive, bytes / 8, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
}

static const struct {
	const char *name;
	void (*work)(void);
	int has_root, adds;
	/* Whether a rank sends bytes to each other one, and has room for those of each. */
	int sends_all, receives_all;
} operations[] = {
	{ "bcast", bcast, 1, 0, 0, 0 },	      { "gather", gather, 1, 0, 0, 1 },
	{ "scatter", scatter, 1, 0, 1, 0 },   { "reduce", reduce, 1, 1, 0, 0 },
	{ "allgather", allgather, 0, 0, 0, 1 }, { "alltoall", alltoall, 0, 0, 1, 1 },
	{ "allreduce", allreduce, 0, 1, 0, 0 },
};

static void (*work)(void);

static void work_elsewhere(void)
{
	for (size_t i = 0; i < between; i += 64)
		other[i]++;
	all_came += size;
	__atomic_add_fetch(came, 1, __ATOMIC_ACQ_REL);
	while (__atomic_load_n(came, __ATOMIC_ACQUIRE) < all_came)
		sched_yield();
}

/* A call takes a small part of what is between two. */
enum { FEWER = 32 };

static double timed_alone(int calls)
{
	double all = 0;

	for (int i = 0; i < calls; i++) {
		double start;

		if (turns)
			root = i % size;
		work_elsewhere();
		start = paired_now();
		work();
		all += paired_now() - start;
	}
	return all / calls;
}

static double timed(int calls)
{
	double start = paired_now();

	if (between)
		return timed_alone(calls / FEWER + 1);
	for (int i = 0; i < calls; i++) {
		if (turns)
			root = i % size;
		work();
	}
	return (paired_now() - start) / calls;
}

/* A double that a rank sends. */
static double number(int from, int at)
{
	return from + at % 7;
}

/* Whether a call brings what it should. */
static int verified(int op)
{
	int same = 1, count = bytes / 8, gets, all = operations[op].receives_all ? size : 1;
	double *in = (double *)receive, *out = (double *)send;

	root = turns ? size - 1 : 0;
	gets = !operations[op].has_root || rank == root || work == bcast || work == scatter;
	for (int i = 0; i < size * count; i++) {
		out[i] = number(rank, i);
		in[i] = -1;
	}
	intercepted = 1;
	work();
	intercepted = 0;
	if (!gets || (work == bcast && rank == root))
		return 1;
	for (int i = 0; i < all * count; i++) {
		int from = operations[op].has_root && all == 1 ? root : i / count;
		int at = operations[op].sends_all ? rank * count + i % count : i % count;
		double expected = operations[op].adds ? 0 : number(from, at);

		for (int other = 0; operations[op].adds && other < size; other++)
			expected += number(other, i);
		same &= in[i] == expected;
	}
	return same;
}

int main(int argc, char **argv)
{
	int sizes[32], most = 0, count = 0;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	for (char *word = argc == 3 || argc == 4 ? strtok(argv[2], ",") : NULL; word && count < 32;
	     word = strtok(NULL, ",")) {
		sizes[count] = atoi(word);
		if (sizes[count] < 8 || sizes[count] % 8 || sizes[count] > 1 << 20)
			count = 32;
		else
			most = sizes[count] > most ? sizes[count] : most;
		count++;
	}
	if (!count || count > 32 || size > MOST_RANKS) {
		fprintf(stderr, "usage: mpirun -n 2 mpi_short MILLISECONDS BYTES[,BYTES...] [BETWEEN], BYTES in whole "
				"doubles\n");
		MPI_Abort(MPI_COMM_WORLD, 2);
	}
	between = argc == 4 ? strtoul(argv[3], NULL, 10) : 0;
	send = calloc(size, most);
	receive = calloc(size, most);
	other = calloc(1, between + 1);
	if (!send || !receive || !other)
		MPI_Abort(MPI_COMM_WORLD, 1);
	MPI_Win window = MPI_WIN_NULL;
	if (between) {
		MPI_Aint length;
		int unit;

		PMPI_Win_allocate_shared(rank ? 0 : sizeof(*came), 1, MPI_INFO_NULL, MPI_COMM_WORLD, &came, &window);
		PMPI_Win_shared_query(window, 0, &length, &unit, &came);
		if (!rank)
			*came = 0;
		PMPI_Barrier(MPI_COMM_WORLD);
	}
	for (int op = 0; op < (int)(sizeof(operations) / sizeof(*operations)); op++)
		for (turns = 0; turns <= operations[op].has_root; turns++)
			for (int k = 0; k < count; k++) {
				char name[32];
				int same;

				snprintf(name, sizeof(name), "%s%s", operations[op].name, turns ? "-turns" : "");
				bytes = sizes[k];
				work = operations[op].work;
				same = verified(op);
				paired(name, bytes, timed, atof(argv[1]), 1, same, "");
			}
	if (between)
		PMPI_Win_free(&window);
	free(send);
	free(receive);
	free(other);
	MPI_Finalize();
	return 0;
}
