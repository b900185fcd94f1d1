// SPDX-License-Identifier: MIT OR Apache-2.0

/* Collectives and messages that are intercepted where all ranks have libcopy_mpi.so; every byte is
 * checked.
 *
 *   partial                  on MPI_COMM_WORLD and on a part of it
 *   partial spawn COMMAND..  with two children, started as the command says, on the merged
 *                            communicator too
 *   partial time             nothing, but rank 0 prints the microseconds of the longest MPI_Init
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BYTES (2 << 20)

static unsigned char *sent, *received;

static void fail(const char *what, int at)
{
	printf("wrong: %s at %d\n", what, at);
	fflush(stdout);
	MPI_Abort(MPI_COMM_WORLD, 3);
}

static void fill(int seed)
{
	for (int i = 0; i < BYTES; i++)
		sent[i] = (unsigned char)(i * 7 + i / 251 + seed);
}

static void check(const unsigned char *bytes, int count, int first, int seed, const char *what)
{
	for (int i = 0; i < count; i++)
		if (bytes[i] != (unsigned char)((i + first) * 7 + (i + first) / 251 + seed))
			fail(what, i);
}

/* What real programs do on a communicator; with messages from each rank to the next. */
static void use(MPI_Comm comm, int rounds)
{
	int rank, size;
	MPI_Comm_rank(comm, &rank);
	MPI_Comm_size(comm, &size);
	int part = BYTES / size;
	for (int round = 0; round < rounds; round++) {
		int root = round % size;
		fill(root + round);
		if (rank != root)
			memset(sent, 0, BYTES);
		MPI_Bcast(sent, BYTES, MPI_BYTE, root, comm);
		check(sent, BYTES, 0, root + round, "bcast");

		fill(rank + round);
		MPI_Allgather(sent, part, MPI_BYTE, received, part, MPI_BYTE, comm);
		for (int other = 0; other < size; other++)
			check(received + other * part, part, 0, other + round, "allgather");

		int *counts = malloc(size * sizeof(int)), *places = malloc(size * sizeof(int));
		for (int other = 0; other < size; other++) {
			counts[other] = part;
			places[other] = other * part;
		}
		MPI_Alltoallv(sent, counts, places, MPI_BYTE, received, counts, places, MPI_BYTE, comm);
		for (int other = 0; other < size; other++)
			check(received + other * part, part, rank * part, other + round, "alltoallv");
		free(counts);
		free(places);

		MPI_Request request;
		MPI_Iallgather(sent, part, MPI_BYTE, received, part, MPI_BYTE, comm, &request);
		MPI_Wait(&request, MPI_STATUS_IGNORE);
		for (int other = 0; other < size; other++)
			check(received + other * part, part, 0, other + round, "iallgather");
		MPI_Barrier(comm);

		memset(received, 0, BYTES);
		MPI_Status status;
		int count;
		MPI_Sendrecv(sent, BYTES, MPI_BYTE, (rank + 1) % size, 5, received, BYTES, MPI_BYTE,
			     (rank + size - 1) % size, 5, comm, &status);
		MPI_Get_count(&status, MPI_BYTE, &count);
		if (count != BYTES)
			fail("count", count);
		check(received, BYTES, 0, (rank + size - 1) % size + round, "message");
	}
	int one = 1, all = 0;
	MPI_Allreduce(&one, &all, 1, MPI_INT, MPI_SUM, comm);
	if (all != size)
		fail("sum", all);
}

int main(int argc, char **argv)
{
	/* Of meetings.c. */
	int *meetings = dlsym(RTLD_DEFAULT, "meetings");
	MPI_Init(&argc, &argv);
	int met = meetings ? *meetings : 0;
	sent = malloc(BYTES);
	received = malloc(BYTES);
	int rank, size;
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	if (meetings) {
		MPI_Barrier(MPI_COMM_WORLD);
		printf("right: %d in MPI_Init, %d in MPI_Barrier\n", met, *meetings - met);
		MPI_Finalize();
		return 0;
	}
	MPI_Comm parent, inter = MPI_COMM_NULL, merged;
	MPI_Comm_get_parent(&parent);
	if (argc > 2 && !strcmp(argv[1], "spawn")) {
		char **rest = argv + 3;
		MPI_Comm_spawn(argv[2], rest, 2, MPI_INFO_NULL, 0, MPI_COMM_WORLD, &inter,
			       MPI_ERRCODES_IGNORE);
	} else if (parent != MPI_COMM_NULL) {
		inter = parent;
	}
	if (inter != MPI_COMM_NULL) {
		MPI_Intercomm_merge(inter, parent != MPI_COMM_NULL, &merged);
		use(merged, 1);
		MPI_Comm_free(&merged);
	}
	if (size > 1) {
		use(MPI_COMM_WORLD, 3);
		MPI_Comm copy;
		MPI_Comm_split(MPI_COMM_WORLD, 0, size - rank, &copy);
		use(copy, 1);
		MPI_Comm_free(&copy);
	}
	if (inter != MPI_COMM_NULL)
		MPI_Comm_disconnect(&inter);
	printf("right\n");
	fflush(stdout);
	MPI_Finalize();
	return 0;
}
