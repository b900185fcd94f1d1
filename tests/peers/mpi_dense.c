// SPDX-License-Identifier: MIT OR Apache-2.0

/*
 * Dense messages between ranks of one machine, each with its neighbour: what `scripts/bench mpi`
 * measures with --ops dense.
 *
 * usage: mpi_dense MILLISECONDS BYTES[,BYTES...]
 *
 * Each operation is measured with each size for MILLISECONDS; what is sent is written before.
 * Rank 0 prints a line of mpi_paired.h for each: microseconds of
 *
 *   pingpong   half a round trip of MPI_Send and MPI_Recv
 *   sendrecv   an MPI_Sendrecv, both directions at once
 *   halo       four MPI_Irecv, four MPI_Isend and an MPI_Waitall
 *   row        a message of sixteen in a row, one way, which are acknowledged
 *
 * Ranks 0 and 1 are neighbours, 2 and 3, and so on. With two ranks or more than there are
 * processors, neighbours are bound to different ones.
 */
#define _GNU_SOURCE
#include "mpi_paired.h"
#include <sched.h>
#include <unistd.h>

enum { FACES = 4, ROW = 16, LINE = 64 };

static unsigned char *from, *to;
static int rank, peer, round_number;
static size_t bytes;

static void fresh(size_t all)
{
	round_number++;
	for (size_t at = 0; at < all; at += LINE)
		from[at] = (unsigned char)(round_number + at / LINE);
}

static void send_one(void)
{
	CALL(Send, from, (int)bytes, MPI_BYTE, peer, 1, MPI_COMM_WORLD);
}

static void recv_one(void)
{
	CALL(Recv, to, (int)bytes, MPI_BYTE, peer, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static void pingpong(void)
{
	fresh(bytes);
	if (rank % 2 == 0)
		send_one();
	recv_one();
	if (rank % 2)
		send_one();
}

static void sendrecv(void)
{
	fresh(bytes);
	CALL(Sendrecv, from, (int)bytes, MPI_BYTE, peer, 1, to, (int)bytes, MPI_BYTE, peer, 1, MPI_COMM_WORLD,
	     MPI_STATUS_IGNORE);
}

static void halo(void)
{
	MPI_Request requests[2 * FACES];
	MPI_Status statuses[2 * FACES];

	fresh(FACES * bytes);
	for (int i = 0; i < FACES; i++)
		CALL(Irecv, to + i * bytes, (int)bytes, MPI_BYTE, peer, i, MPI_COMM_WORLD, &requests[i]);
	for (int i = 0; i < FACES; i++)
		CALL(Isend, from + i * bytes, (int)bytes, MPI_BYTE, peer, i, MPI_COMM_WORLD,
		     &requests[FACES + i]);
	CALL(Waitall, 2 * FACES, requests, statuses);
}

static void row(void)
{
	fresh(bytes);
	for (int i = 0; i < ROW; i++)
		rank % 2 ? recv_one() : send_one();
	if (rank % 2)
		CALL(Send, from, 1, MPI_BYTE, peer, 2, MPI_COMM_WORLD);
	else
		CALL(Recv, to, 1, MPI_BYTE, peer, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static const struct {
	const char *name;
	void (*work)(void);
	double scale;
	/* How much of what is sent arrives, in messages. */
	int messages;
} operations[] = {
	{ "pingpong", pingpong, 2, 1 },
	{ "sendrecv", sendrecv, 1, 1 },
	{ "halo", halo, 1, FACES },
	{ "row", row, ROW, 1 },
};

static void (*work)(void);

static double timed(int calls)
{
	double start = paired_now();

	for (int i = 0; i < calls; i++)
		work();
	return (paired_now() - start) / calls;
}

/* Whether what the neighbour has sent is here. */
static int verified(size_t all, int does_receive)
{
	int same = 1;

	memset(from, 0x5a + rank % 2, all);
	memset(to, 0, all);
	intercepted = 1;
	work();
	intercepted = 0;
	for (size_t at = 1; does_receive && at < all; at++)
		same &= at % LINE == 0 || to[at] == 0x5a + !(rank % 2);
	return same;
}

/* Binds neighbours to different processors. */
static void bind_here(void)
{
	cpu_set_t allowed, one;
	int number = 0, wanted;

	if (sched_getaffinity(0, sizeof(allowed), &allowed))
		return;
	wanted = rank % CPU_COUNT(&allowed);
	CPU_ZERO(&one);
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, &allowed) && number++ == wanted)
			CPU_SET(cpu, &one);
	sched_setaffinity(0, sizeof(one), &one);
}

int main(int argc, char **argv)
{
	size_t sizes[32], most = 0;
	int count = 0, size;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	for (char *word = argc == 3 ? strtok(argv[2], ",") : NULL; word && count < 32; word = strtok(NULL, ",")) {
		sizes[count] = strtoul(word, NULL, 10);
		most = sizes[count] > most ? sizes[count] : most;
		count++;
	}
	if (!count || size % 2) {
		fprintf(stderr, "usage: mpirun -n 2 mpi_dense MILLISECONDS BYTES[,BYTES...]\n");
		MPI_Abort(MPI_COMM_WORLD, 2);
	}
	bind_here();
	peer = rank ^ 1;
	/* As programs have them: long ones begin 16 bytes behind the beginning of a page, where the
	 * memcpy of some C libraries is slow. */
	from = malloc(FACES * most);
	to = malloc(FACES * most);
	if (!from || !to)
		MPI_Abort(MPI_COMM_WORLD, 1);
	memset(from, 1, FACES * most);
	memset(to, 1, FACES * most);
	for (size_t i = 0; i < sizeof(operations) / sizeof(*operations); i++)
		for (int k = 0; k < count; k++) {
			int same;

			bytes = sizes[k];
			work = operations[i].work;
			same = verified(operations[i].messages * bytes, work != row || rank % 2);
			paired(operations[i].name, bytes, timed, atof(argv[1]), operations[i].scale, same, "");
		}
	free(from);
	free(to);
	MPI_Finalize();
	return 0;
}
