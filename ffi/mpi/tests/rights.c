// SPDX-License-Identifier: MIT OR Apache-2.0

/* Ranks that lose the right to read each other's memory after MPI_Init. Prints one line for each
 * call, the same with libcopy_mpi.so and without it. Two ranks or more; started by root.
 *
 * usage: rights one|all early|late|raw CASE...   rank 1, or all, become another user
 *        late: after some calls; raw: by the system call, which nobody else hears of
 */
#define _GNU_SOURCE
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "checksum.h"

enum { ROWS = 30000, STRIDE = 40, LARGE = 3 << 20, PART = 600000 };

static int rank, size, peer;
static unsigned char *a, *b;
static MPI_Datatype rows;

static void reset(int seed)
{
	for (size_t i = 0; i < LARGE; i++) {
		a[i] = i * 7 + i / 251 + rank + seed;
		b[i] = i * 3 + rank;
	}
}

static void show(const char *what)
{
	uint64_t mine = hash(b, LARGE), *all = calloc(size, sizeof(*all));
	MPI_Gather(&mine, 1, MPI_UINT64_T, all, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
	for (int i = 0; rank == 0 && i < size; i++)
		printf("%s %d: %016llx\n", what, i, (unsigned long long)all[i]);
	fflush(stdout);
	free(all);
	reset(strlen(what));
	MPI_Barrier(MPI_COMM_WORLD);
}

static void messages(void)
{
	MPI_Request requests[2];
	MPI_Status statuses[2];
	if (rank > 1)
		return;
	for (int from = 0; from < 2; from++) {
		if (rank == from) {
			MPI_Send(a, LARGE, MPI_BYTE, peer, 1, MPI_COMM_WORLD);
			MPI_Send(a, 1, rows, peer, 2, MPI_COMM_WORLD);
		} else {
			MPI_Recv(b, LARGE, MPI_BYTE, peer, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
			MPI_Recv(b, 1, rows, peer, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		}
	}
	MPI_Irecv(b, 1, rows, peer, 3, MPI_COMM_WORLD, &requests[0]);
	MPI_Isend(a, 1, rows, peer, 3, MPI_COMM_WORLD, &requests[1]);
	MPI_Waitall(2, requests, statuses);
	MPI_Sendrecv(a, LARGE, MPI_BYTE, peer, 4, b, LARGE, MPI_BYTE, peer, 4, MPI_COMM_WORLD,
		     MPI_STATUS_IGNORE);
}

/* The receiver is late, so that the sender packs, and goes on to wait in a call of ours: what is
 * packed gets to a receiver that must not read it only from there. */
static void late(void)
{
	MPI_Request answer;
	if (rank == 0) {
		MPI_Irecv(b, LARGE, MPI_BYTE, 1, 3, MPI_COMM_WORLD, &answer);
		MPI_Send(a, 1, rows, 1, 1, MPI_COMM_WORLD);
		MPI_Send(a, LARGE, MPI_BYTE, 1, 2, MPI_COMM_WORLD);
		MPI_Wait(&answer, MPI_STATUS_IGNORE);
	} else if (rank == 1) {
		usleep(50000);
		MPI_Recv(b, 1, rows, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		usleep(50000);
		MPI_Recv(b, LARGE, MPI_BYTE, 0, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		MPI_Send(a, LARGE, MPI_BYTE, 0, 3, MPI_COMM_WORLD);
	}
}

static void collective(int which)
{
	/* What is dense here goes into rows there. */
	const int bytes[2] = { 24 * ROWS, 24 * ROWS }, at[2] = { 0, 24 * ROWS }, ones[2] = { 1, 1 }, places[2] = { 0, 1 };
	MPI_Request request;
	int part = LARGE / size / 8 * 8;
	switch (which) {
	case 0:
		MPI_Bcast(rank == 0 ? a : b, LARGE, MPI_BYTE, 0, MPI_COMM_WORLD);
		break;
	case 1:
		MPI_Bcast(rank == 1 ? a : b, LARGE, MPI_BYTE, 1, MPI_COMM_WORLD);
		break;
	case 2:
		MPI_Gather(a, part, MPI_BYTE, b, part, MPI_BYTE, 0, MPI_COMM_WORLD);
		break;
	case 3:
		MPI_Scatter(a, part, MPI_BYTE, b, part, MPI_BYTE, 1, MPI_COMM_WORLD);
		break;
	case 4:
		MPI_Allgather(a, part, MPI_BYTE, b, part, MPI_BYTE, MPI_COMM_WORLD);
		break;
	case 5:
		MPI_Alltoall(a, part, MPI_BYTE, b, part, MPI_BYTE, MPI_COMM_WORLD);
		break;
	case 6:
		MPI_Allreduce(a, b, LARGE / 4, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
		break;
	case 7:
		MPI_Reduce(a, b, LARGE / 4, MPI_INT, MPI_SUM, 1, MPI_COMM_WORLD);
		break;
	case 8:
		MPI_Reduce_scatter_block(a, b, part / 4, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
		break;
	case 9:
		MPI_Iallgather(a, part, MPI_BYTE, b, part, MPI_BYTE, MPI_COMM_WORLD, &request);
		MPI_Wait(&request, MPI_STATUS_IGNORE);
		break;
	case 10:
		MPI_Iallreduce(a, b, LARGE / 4, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &request);
		MPI_Wait(&request, MPI_STATUS_IGNORE);
		break;
	case 11:
		if (size == 2)
			MPI_Alltoallv(a, bytes, at, MPI_BYTE, b, ones, places, rows, MPI_COMM_WORLD);
		break;
	default:
		MPI_Ibcast(rank == 1 ? a : b, LARGE, MPI_BYTE, 1, MPI_COMM_WORLD, &request);
		MPI_Wait(&request, MPI_STATUS_IGNORE);
	}
}

static const char *const names[] = { "bcast",	  "bcast from 1", "gather",	    "scatter",
				     "allgather", "alltoall",	  "allreduce",	    "reduce",
				     "slices",	  "iallgather",	  "iallreduce",	    "alltoallv",
				     "ibcast" };

static void all(const char *only)
{
	if (strstr("messages", only)) {
		messages();
		show("messages");
		messages();
		show("messages again");
	}
	if (strstr("late", only)) {
		late();
		show("late");
	}
	for (int which = 0; which < 13; which++) {
		if (strstr("collectives", only) == NULL && strcmp(names[which], only))
			continue;
		collective(which);
		show(names[which]);
		collective(which);
		show(names[which]);
	}
}

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	if (argc < 4)
		MPI_Abort(MPI_COMM_WORLD, 2);
	peer = 1 - rank;
	a = malloc(LARGE);
	b = malloc(LARGE);
	reset(0);
	MPI_Type_vector(ROWS, 24, STRIDE, MPI_BYTE, &rows);
	MPI_Type_commit(&rows);
	for (int i = 3; strcmp(argv[2], "late") == 0 && i < argc; i++)
		all(argv[i]);
	int raw = strcmp(argv[2], "raw") == 0;
	if (rank == 1 || strcmp(argv[1], "all") == 0)
		if ((raw ? syscall(SYS_setuid, 65534) : setuid(65534)) != 0)
			MPI_Abort(MPI_COMM_WORLD, 2);
	/* Before it happens nobody sends what would be received afterwards. */
	MPI_Barrier(MPI_COMM_WORLD);
	for (int i = 3; i < argc; i++)
		all(argv[i]);
	MPI_Finalize();
	return 0;
}
