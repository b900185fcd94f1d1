// SPDX-License-Identifier: MIT OR Apache-2.0

/*
 * Latency, bandwidth and bidirectional bandwidth of vector types between two ranks: 2 MiB in blocks
 * whose stride is twice their length, as in figures 6 and 8 of the paper on FALCON-X.
 *
 * usage: mpi_vector OP,... [MILLISECONDS [FACTOR]]
 *
 * OP is latency (half of a round trip), bandwidth (a window of messages in one direction, answered
 * by one of no bytes) or bibandwidth (a window in each direction at once); of the last two the time
 * of a message is printed, in lines of mpi_paired.h. Blocks go from 128 bytes to 2 MiB, each FACTOR
 * (2) times the one before.
 */
#include "mpi_bench.h"
#include "mpi_paired.h"

enum { TOTAL = 2 << 20, SPAN = 2 * TOTAL, WINDOW = 8 };

static unsigned char *from, *to;
static MPI_Datatype type;

static void latency(void)
{
	if (rank == 0) {
		CALL(Send, from, 1, type, 1, 1, MPI_COMM_WORLD);
		CALL(Recv, to, 1, type, 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	} else {
		CALL(Recv, to, 1, type, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		CALL(Send, from, 1, type, 0, 1, MPI_COMM_WORLD);
	}
}

static void bandwidth(void)
{
	MPI_Request requests[WINDOW];
	MPI_Status statuses[WINDOW];

	for (int i = 0; i < WINDOW; i++)
		if (rank == 0)
			CALL(Isend, from + (size_t)i * SPAN, 1, type, 1, 2, MPI_COMM_WORLD,
				  &requests[i]);
		else
			CALL(Irecv, to + (size_t)i * SPAN, 1, type, 0, 2, MPI_COMM_WORLD,
				  &requests[i]);
	CALL(Waitall, WINDOW, requests, statuses);
	if (rank == 0)
		CALL(Recv, NULL, 0, MPI_BYTE, 1, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	else
		CALL(Send, NULL, 0, MPI_BYTE, 0, 3, MPI_COMM_WORLD);
}

static void bibandwidth(void)
{
	MPI_Request requests[2 * WINDOW];
	MPI_Status statuses[2 * WINDOW];

	for (int i = 0; i < WINDOW; i++)
		CALL(Irecv, to + (size_t)i * SPAN, 1, type, 1 - rank, 4, MPI_COMM_WORLD,
			  &requests[i]);
	for (int i = 0; i < WINDOW; i++)
		CALL(Isend, from + (size_t)i * SPAN, 1, type, 1 - rank, 4, MPI_COMM_WORLD,
			  &requests[WINDOW + i]);
	CALL(Waitall, 2 * WINDOW, requests, statuses);
}

static const struct test {
	const char *name;
	void (*once)(void);
	/* Messages that each rank receives, and those that follow each other in the time of one
	 * call. */
	int received[2], messages;
} tests[] = {
	{ "latency", latency, { 1, 1 }, 2 },
	{ "bandwidth", bandwidth, { 0, WINDOW }, WINDOW },
	{ "bibandwidth", bibandwidth, { WINDOW, WINDOW }, 2 * WINDOW },
};

static unsigned char pattern(int sender, size_t at, size_t round)
{
	uint64_t x = (at + 1) * 0x9e3779b97f4a7c15u + (uint64_t)(sender + 2) * 0xbf58476d1ce4e5b9u +
		     round * 0x94d049bb133111ebu;

	x ^= x >> 29;
	x *= 0xbf58476d1ce4e5b9u;
	return (unsigned char)(x >> 56);
}

/* Whether a call brings every byte of every message to its place and leaves the gaps alone. */
static int check(const struct test *test, size_t block)
{
	const unsigned char poison = 0x5a;
	int right = 1;

	for (size_t i = 0; i < (size_t)WINDOW * SPAN; i++)
		from[i] = pattern(rank, i, block);
	memset(to, poison, (size_t)WINDOW * SPAN);
	intercepted = 1;
	test->once();
	intercepted = 0;
	for (size_t i = 0; i < (size_t)WINDOW * SPAN; i++) {
		int message = i / SPAN < (size_t)test->received[rank];
		int mine = message && i % SPAN % (2 * block) < block;

		right &= to[i] == (mine ? pattern(1 - rank, i, block) : poison);
	}
	return right;
}

/* What `timed` measures. */
static const struct test *current;

static double timed(int calls)
{
	double start = microseconds();

	for (int i = 0; i < calls; i++)
		current->once();
	return (microseconds() - start) / calls;
}

static void measure(const struct test *test, size_t block, double budget)
{
	char rest[64];
	int right;

	MPI_Type_vector((int)(TOTAL / block), (int)block, (int)(2 * block), MPI_CHAR, &type);
	MPI_Type_commit(&type);
	right = check(test, block);
	current = test;
	snprintf(rest, sizeof(rest), ",vector_%zuB,%zu", block, block);
	paired(test->name, TOTAL, timed, budget, test->messages, right, rest);
	MPI_Type_free(&type);
}

int main(int argc, char **argv)
{
	double budget = argc > 2 ? atof(argv[2]) : 100;
	size_t factor = argc > 3 ? strtoul(argv[3], NULL, 10) : 2;
	char *list, *rest = NULL;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	if (argc < 2 || size != 2 || factor < 2) {
		if (!rank)
			fprintf(stderr,
				"usage: mpirun -n 2 mpi_vector OP,... [MILLISECONDS [FACTOR]]\n");
		MPI_Abort(MPI_COMM_WORLD, 2);
	}
	from = memory((size_t)WINDOW * SPAN, 0);
	to = memory((size_t)WINDOW * SPAN, 1);
	list = strdup(argv[1]);
	for (char *op = strtok_r(list, ",", &rest); op; op = strtok_r(NULL, ",", &rest)) {
		const struct test *test = NULL;

		for (size_t i = 0; i < sizeof(tests) / sizeof(*tests); i++)
			if (!strcmp(op, tests[i].name))
				test = &tests[i];
		if (!test) {
			if (!rank)
				fprintf(stderr,
					"mpi_vector: '%s' is none of latency, bandwidth, bibandwidth\n",
					op);
			MPI_Abort(MPI_COMM_WORLD, 2);
		}
		for (size_t block = 128; block < TOTAL; block *= factor)
			measure(test, block, budget);
		measure(test, TOTAL, budget);
	}
	free(list);
	MPI_Finalize();
	return 0;
}
