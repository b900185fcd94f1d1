// SPDX-License-Identifier: MIT OR Apache-2.0

/*
 * Times MPI_Bcast, MPI_Gather, MPI_Scatter, MPI_Allgather, MPI_Alltoall, MPI_Reduce, MPI_Allreduce,
 * MPI_Reduce_scatter_block, MPI_Scan, MPI_Exscan (sums of doubles) and MPI_Barrier as the OSU
 * micro-benchmarks do: some calls to warm up, a barrier, then every call is timed on its own with a
 * barrier after it, and the times of the ranks are averaged. Operations whose names begin with an i
 * (ibcast, igather, iscatter, iallgather, ialltoall, ireduce, iallreduce, ireduce_scatter, iscan,
 * iexscan, and igatherv, iallgatherv and ialltoallv of equal parts) are started and waited for.
 *
 * Alone it compares calls that are intercepted with plain ones (mpi_paired.h). With --control
 * SOCKET it is one of several peers of `libcopy bench peers`: every rank connects to the socket and
 * does what it is told, and sleeps in read(2) meanwhile so that it does not disturb the others.
 */
#define _GNU_SOURCE
#include <mpi.h>
#include <time.h>

#include "mpi_paired.h"
#include "peer.h"

enum { MOST_RANKS = 256 };

static int rank, size;

static struct buffer send_buffer, receive_buffer, all_buffer;

static void die(const char *what)
{
	fprintf(stderr, "mpi_coll: rank %d: %s: %s\n", rank, what, strerror(errno));
	MPI_Abort(MPI_COMM_WORLD, 1);
	exit(1);
}

/* One byte of the message that `from` sends in a round: depends on all three. */
static unsigned char pattern(uint64_t round, int from, size_t at)
{
	uint64_t x = (at + 1) * 0x9e3779b97f4a7c15u + (uint64_t)from * 0xbf58476d1ce4e5b9u +
		     round * 0x94d049bb133111ebu;

	x ^= x >> 29;
	x *= 0xbf58476d1ce4e5b9u;
	return (unsigned char)(x >> 56);
}

/* What a reduction adds, and what comes of it: small numbers, whose sums do not round. */
static double number(uint64_t round, int from, size_t at)
{
	return pattern(round, from, at);
}

static int differs_from_sum(const unsigned char *got, size_t start, size_t count, uint64_t round,
			    int ranks)
{
	for (size_t i = 0; i < count; i++) {
		double sum = 0, found;

		for (int from = 0; from < ranks; from++)
			sum += number(round, from, start + i);
		memcpy(&found, got + 8 * i, 8);
		if (found != sum)
			return 1;
	}
	return 0;
}

static void fill(unsigned char *to, size_t bytes, uint64_t round, int from)
{
	for (size_t i = 0; i < bytes; i++)
		to[i] = pattern(round, from, i);
}

static int differs(const unsigned char *got, size_t bytes, uint64_t round, int from)
{
	for (size_t i = 0; i < bytes; i++)
		if (got[i] != pattern(round, from, i))
			return 1;
	return 0;
}

/* Whether operations are nonblocking ones, and whether those are called whose parts may differ. */
static int nonblocking, irregular;

/* Starts an operation of equal parts whose parts may differ. */
static void start_irregular(const char *op, int n, int root, MPI_Request *request)
{
	unsigned char *s = send_buffer.data, *r = receive_buffer.data;
	MPI_Comm world = MPI_COMM_WORLD;
	/* They belong to the call until it is complete. */
	static int counts[MOST_RANKS], places[MOST_RANKS];

	for (int i = 0; i < size; i++)
		counts[i] = n, places[i] = i * n;
	if (!strcmp(op, "gather"))
		CALL(Igatherv, s, n, MPI_BYTE, r, counts, places, MPI_BYTE, root, world, request);
	else if (!strcmp(op, "allgather"))
		CALL(Iallgatherv, s, n, MPI_BYTE, r, counts, places, MPI_BYTE, world, request);
	else
		CALL(Ialltoallv, all_buffer.data, counts, places, MPI_BYTE, r, counts, places,
		     MPI_BYTE, world, request);
}

/* Starts a nonblocking operation, and waits for it. */
static void start_and_wait(const char *op, size_t bytes, int root)
{
	unsigned char *s = send_buffer.data, *r = receive_buffer.data;
	MPI_Comm world = MPI_COMM_WORLD;
	MPI_Request request;
	int n = (int)bytes;

	if (irregular)
		start_irregular(op, n, root, &request);
	else if (!strcmp(op, "bcast"))
		CALL(Ibcast, s, n, MPI_BYTE, root, world, &request);
	else if (!strcmp(op, "gather"))
		CALL(Igather, s, n, MPI_BYTE, r, n, MPI_BYTE, root, world, &request);
	else if (!strcmp(op, "scatter"))
		CALL(Iscatter, r, n, MPI_BYTE, s, n, MPI_BYTE, root, world, &request);
	else if (!strcmp(op, "allgather"))
		CALL(Iallgather, s, n, MPI_BYTE, r, n, MPI_BYTE, world, &request);
	else if (!strcmp(op, "alltoall"))
		CALL(Ialltoall, all_buffer.data, n, MPI_BYTE, r, n, MPI_BYTE, world, &request);
	else if (!strcmp(op, "reduce"))
		CALL(Ireduce, s, r, n / 8, MPI_DOUBLE, MPI_SUM, root, world, &request);
	else if (!strcmp(op, "allreduce"))
		CALL(Iallreduce, s, r, n / 8, MPI_DOUBLE, MPI_SUM, world, &request);
	else if (!strcmp(op, "reduce_scatter"))
		CALL(Ireduce_scatter_block, s, r, n / 8 / size, MPI_DOUBLE, MPI_SUM, world,
		     &request);
	else if (!strcmp(op, "scan"))
		CALL(Iscan, s, r, n / 8, MPI_DOUBLE, MPI_SUM, world, &request);
	else if (!strcmp(op, "exscan"))
		CALL(Iexscan, s, r, n / 8, MPI_DOUBLE, MPI_SUM, world, &request);
	else {
		errno = EINVAL;
		die("operation (ibcast, igather, igatherv, iscatter, iallgather, iallgatherv, ialltoall, "
		    "ialltoallv, ireduce, iallreduce, ireduce_scatter, iscan, iexscan)");
	}
	CALL(Wait, &request, MPI_STATUS_IGNORE);
}

static void call(const char *op, size_t bytes, int root)
{
	unsigned char *s = send_buffer.data, *r = receive_buffer.data;
	int n = (int)bytes;

	if (nonblocking)
		start_and_wait(op, bytes, root);
	else if (!strcmp(op, "bcast"))
		CALL(Bcast, s, n, MPI_BYTE, root, MPI_COMM_WORLD);
	else if (!strcmp(op, "gather"))
		CALL(Gather, s, n, MPI_BYTE, r, n, MPI_BYTE, root, MPI_COMM_WORLD);
	else if (!strcmp(op, "scatter"))
		CALL(Scatter, r, n, MPI_BYTE, s, n, MPI_BYTE, root, MPI_COMM_WORLD);
	else if (!strcmp(op, "allgather"))
		CALL(Allgather, s, n, MPI_BYTE, r, n, MPI_BYTE, MPI_COMM_WORLD);
	else if (!strcmp(op, "alltoall"))
		CALL(Alltoall, all_buffer.data, n, MPI_BYTE, r, n, MPI_BYTE, MPI_COMM_WORLD);
	else if (!strcmp(op, "reduce"))
		CALL(Reduce, s, r, n / 8, MPI_DOUBLE, MPI_SUM, root, MPI_COMM_WORLD);
	else if (!strcmp(op, "allreduce"))
		CALL(Allreduce, s, r, n / 8, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
	else if (!strcmp(op, "reduce_scatter"))
		CALL(Reduce_scatter_block, s, r, n / 8 / size, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
	else if (!strcmp(op, "scan"))
		CALL(Scan, s, r, n / 8, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
	else if (!strcmp(op, "exscan"))
		CALL(Exscan, s, r, n / 8, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
	else if (!strcmp(op, "barrier"))
		CALL(Barrier, MPI_COMM_WORLD);
	else {
		errno = EINVAL;
		die("operation (one of bcast, gather, scatter, allgather, alltoall, reduce, allreduce, reduce_scatter, scan, exscan, barrier)");
	}
}

static void prepare(const char *op, size_t bytes)
{
	reserve(&send_buffer, bytes ? bytes : 1, 2 * (size_t)rank);
	if (strcmp(op, "bcast") && strcmp(op, "barrier"))
		reserve(&receive_buffer, bytes ? bytes * (size_t)size : 1,
			2 * (size_t)rank + 1);
	if (!strcmp(op, "alltoall"))
		reserve(&all_buffer, bytes ? bytes * (size_t)size : 1,
			2 * (size_t)rank + 2);
}

/* Does the operation once and looks at every byte. Returns 1 if all of them are right. */
static int check(const char *op, size_t bytes, int root, uint64_t round)
{
	int bad = 0, poison = (int)(round & 0xff) ^ 0x5a;
	int scatters = !strcmp(op, "reduce_scatter");
	int scans = !strcmp(op, "scan"), exscans = !strcmp(op, "exscan");
	int reduces = scatters || scans || exscans || !strcmp(op, "reduce") || !strcmp(op, "allreduce");
	size_t share = bytes / 8 / (size_t)size;
	int many_receive = !strcmp(op, "allgather") || (!strcmp(op, "gather") && rank == root);

	prepare(op, bytes);
	memset(send_buffer.data, poison, bytes);
	if (strcmp(op, "bcast") && strcmp(op, "barrier"))
		memset(receive_buffer.data, poison, bytes * (size_t)size);
	if (!strcmp(op, "gather") || !strcmp(op, "allgather"))
		fill(send_buffer.data, bytes, round, rank);
	else if (!strcmp(op, "bcast") && rank == root)
		fill(send_buffer.data, bytes, round, root);
	else if (!strcmp(op, "scatter") && rank == root)
		for (int i = 0; i < size; i++)
			fill(receive_buffer.data + bytes * (size_t)i, bytes, round, i);

	else if (!strcmp(op, "alltoall"))
		for (int i = 0; i < size; i++)
			fill(all_buffer.data + bytes * (size_t)i, bytes, round + 3 * i, rank);
	for (size_t i = 0; reduces && i < bytes / 8; i++) {
		double value = number(round, rank, i);

		memcpy(send_buffer.data + 8 * i, &value, 8);
	}

	call(op, bytes, root);

	if (scatters)
		bad = differs_from_sum(receive_buffer.data, share * (size_t)rank, share, round, size);
	else if (scans || (exscans && rank))
		bad = differs_from_sum(receive_buffer.data, 0, bytes / 8, round, rank + scans);
	else if (reduces && !exscans && (rank == root || !strcmp(op, "allreduce")))
		bad = differs_from_sum(receive_buffer.data, 0, bytes / 8, round, size);
	for (int i = 0; !strcmp(op, "alltoall") && i < size; i++)
		bad |= differs(receive_buffer.data + bytes * (size_t)i, bytes, round + 3 * rank,
			       i);
	if (!strcmp(op, "bcast"))
		bad = differs(send_buffer.data, bytes, round, root);
	else if (!strcmp(op, "scatter"))
		bad = differs(send_buffer.data, bytes, round, rank);
	for (int i = 0; many_receive && i < size; i++)
		bad |= differs(receive_buffer.data + bytes * (size_t)i, bytes, round, i);
	return !bad;
}

static uint64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/*
 * Writes what this rank contributes, as programs do between calls: nobody else has it in a cache
 * then. Sums of it do not overflow.
 */
static void write_buffers(const char *op, size_t bytes, int round)
{
	if (!strcmp(op, "barrier"))
		return;
	if (!strcmp(op, "alltoall"))
		memset(all_buffer.data, round & 0x3f, bytes * (size_t)size);
	else if (!strcmp(op, "scatter") && !rank)
		memset(receive_buffer.data, round & 0x3f, bytes * (size_t)size);
	else
		memset(send_buffer.data, round & 0x3f, bytes);
}

/*
 * The times of `count` calls on this rank, in nanoseconds, with buffers written before each if that
 * is asked for.
 */
static void measure(const char *op, size_t bytes, int warmup, int count, int written,
		    uint64_t *times)
{
	prepare(op, bytes);
	for (int i = 0; i < warmup; i++)
		call(op, bytes, 0);
	MPI_Barrier(MPI_COMM_WORLD);
	for (int i = 0; i < count; i++) {
		uint64_t start;

		if (written)
			write_buffers(op, bytes, i);
		start = now();

		call(op, bytes, 0);
		times[i] = now() - start;
		MPI_Barrier(MPI_COMM_WORLD);
	}
}

static void obey(const char *path)
{
	char version[MPI_MAX_LIBRARY_VERSION_STRING], line[256], op[32];
	int length;
	FILE *in, *out;

	connect_to(path, &in, &out);
	MPI_Get_library_version(version, &length);
	version[strcspn(version, "\n,")] = 0;
	for (char *c = version; *c; c++)
		if (*c == '\t')
			*c = ' ';
	fprintf(out, "hello %d %d %s\n", rank, size, version);
	fflush(out);

	while (fgets(line, sizeof(line), in) && strncmp(line, "quit", 4)) {
		size_t bytes;
		unsigned long long round;
		char what[8];
		int root, warmup, count;

		if (sscanf(line, "%7s %31s %zu %*s %d %d", what, op, &bytes, &warmup, &count) == 5 &&
		    (!strcmp(what, "time") || !strcmp(what, "written"))) {
			uint64_t *times = calloc((size_t)count, sizeof(*times));

			if (!times)
				die("calloc");
			measure(op, bytes, warmup, count, !strcmp(what, "written"), times);
			fprintf(out, "times");
			for (int i = 0; i < count; i++)
				fprintf(out, " %llu", (unsigned long long)times[i]);
			fprintf(out, "\n");
			free(times);
		} else if (sscanf(line, "check %31s %zu %*s %d %llu", op, &bytes, &root, &round) ==
			   4) {
			fprintf(out, check(op, bytes, root, round) ? "ok\n" : "bad wrong bytes\n");
		} else {
			fprintf(out, "error unknown command: %s", line);
		}
		fflush(out);
	}
}

/* What `timed` measures. */
static char timed_op[32];
static size_t timed_bytes;

static void timed_call(void)
{
	call(timed_op, timed_bytes, 0);
}

static double timed(int calls)
{
	return paired_each(timed_call, calls);
}

static void compare(const char *full, size_t bytes, double budget)
{
	int right;

	snprintf(timed_op, sizeof(timed_op), "%s", full + (*full == 'i'));
	timed_bytes = bytes;
	nonblocking = *full == 'i';
	irregular = nonblocking && (!strcmp(full, "igatherv") || !strcmp(full, "iallgatherv") ||
				    !strcmp(full, "ialltoallv"));
	if (irregular)
		timed_op[strlen(timed_op) - 1] = 0;
	if (irregular && size > MOST_RANKS) {
		errno = E2BIG;
		die("ranks of an operation whose parts may differ");
	}
	intercepted = 1;
	/* Ranks meet for nonblocking ones in a blocking one, and tell each other now and then how
	 * long parts are that not all know. */
	prepare(timed_op, bytes);
	for (int i = 0; nonblocking && i < 16; i++) {
		call(timed_op, bytes, 0);
		MPI_Barrier(MPI_COMM_WORLD);
	}
	right = check(timed_op, bytes, size - 1, 1) & check(timed_op, bytes, 0, 2);
	intercepted = 0;
	prepare(timed_op, bytes);
	paired(full, bytes, timed, budget, 1, right, "");
}

static const char help[] =
	"usage: mpirun -n N mpi_coll [--ops LIST] [--min BYTES] [--max BYTES] [--time MILLISECONDS]\n"
	"       mpirun -n N mpi_coll --control SOCKET\n"
	"\n"
	"Compares intercepted with plain calls (tests/peers/mpi_paired.h) for sizes from --min (65536) to --max\n"
	"(16777216) in steps of four, each case for --time (100) or seven rounds. LIST is comma-separated;\n"
	"bcast, gather, scatter and allgather by default, and alltoall, reduce, allreduce, reduce_scatter, scan,\n"
	"exscan; the first seven of these with an i in front, too.\n"
	"--control is for `libcopy bench peers`, which tells the ranks what to do.\n";

int main(int argc, char **argv)
{
	const char *control = NULL, *ops = "bcast,gather,scatter,allgather";
	double budget = 100;
	size_t min = 65536, max = 16u << 20;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	for (int i = 1; i < argc; i++) {
		const char *value = i + 1 < argc ? argv[i + 1] : NULL;

		if (value && !strcmp(argv[i], "--control"))
			control = value;
		else if (value && !strcmp(argv[i], "--ops"))
			ops = value;
		else if (value && !strcmp(argv[i], "--min"))
			min = strtoull(value, NULL, 0);
		else if (value && !strcmp(argv[i], "--max"))
			max = strtoull(value, NULL, 0);
		else if (value && !strcmp(argv[i], "--time"))
			budget = atof(value);
		else {
			if (!rank)
				fputs(help, !strcmp(argv[i], "--help") ? stdout : stderr);
			MPI_Finalize();
			return strcmp(argv[i], "--help") ? 2 : 0;
		}
		i++;
	}
	if (max > INT32_MAX || min == 0) {
		if (!rank)
			fprintf(stderr, "mpi_coll: sizes go from 1 to %d bytes\n", INT32_MAX);
		MPI_Finalize();
		return 2;
	}

	if (control) {
		obey(control);
	} else {
		char *list = strdup(ops), *rest = NULL;

		if (!rank)
			puts(PAIRED_HEADER);
		for (char *op = strtok_r(list, ",", &rest); op; op = strtok_r(NULL, ",", &rest))
			for (size_t bytes = min; bytes <= max; bytes *= 4)
				compare(op, bytes, budget);
		free(list);
	}
	MPI_Finalize();
	return 0;
}
