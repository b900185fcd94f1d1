// SPDX-License-Identifier: MIT OR Apache-2.0

/*
 * Calls nonblocking collectives of one class again and again, several at once, and checks what it
 * received.
 *
 *   governed_nonblocking ibcast|iallgather|iallreduce CALLS BYTES WINDOW
 *   governed_nonblocking ahead CALLS BYTES 1
 *   governed_nonblocking bcast_init CALLS BYTES 1
 *
 * bcast_init: starts a persistent broadcast instead, and another one in between. ahead: rank 0
 * starts all its broadcasts before the others, who wait for a message that it sends then, start
 * one.
 *
 * With VIRTUAL_CLOCK=own, libcopy_mpi.so takes long. GOVERNED_ODD=1: rank 1 alone does without the
 * governor. GOVERNED_BOUND=1: each rank runs on a processor of its own alone.
 */
#include "virtual_clock.h"

#include <mpi.h>
#include <sched.h>
#include <stdio.h>

#include "persistent.h"

/* Elements that are checked: one in this many, and so the last one. */
enum { MOST_WINDOW = 16, STEP = 7 };

static long ahead(int rank, int size, int calls, int count)
{
	MPI_Request *requests = malloc(sizeof(MPI_Request) * calls);
	MPI_Status *statuses = malloc(sizeof(MPI_Status) * calls);
	int *all = malloc(sizeof(int) * count * (rank == 0 ? 1 : calls)), token = 0;
	long wrong = 0;
	for (int i = 0; rank == 0 && i < count; i++)
		all[i] = 3 * i;
	if (rank != 0)
		MPI_Recv(&token, 1, MPI_INT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	for (int call = 0; call < calls; call++)
		MPI_Ibcast(all + (rank == 0 ? 0 : (size_t)call * count), count, MPI_INT, 0, MPI_COMM_WORLD,
			   &requests[call]);
	for (int other = 1; rank == 0 && other < size; other++)
		MPI_Send(&token, 1, MPI_INT, other, 0, MPI_COMM_WORLD);
	MPI_Waitall(calls, requests, statuses);
	for (int call = 0; rank != 0 && call < calls; call++)
		for (int i = (count - 1) % STEP; i < count; i += STEP)
			wrong += all[(size_t)call * count + i] != 3 * i;
	free(requests), free(statuses), free(all);
	return wrong;
}

static long again(int rank, int calls, int count)
{
	int *one = malloc(sizeof(int) * count), *other = malloc(sizeof(int) * count);
	long wrong = 0;
	MPI_Request requests[2];
	INIT(Bcast)(one, count, MPI_INT, 0, MPI_COMM_WORLD, MPI_INFO_NULL, &requests[0]);
	INIT(Bcast)(other, count, MPI_INT, 1, MPI_COMM_WORLD, MPI_INFO_NULL, &requests[1]);
	for (int call = 0; call < calls; call++) {
		int both = call % 16 == 0;
		for (int i = 0; i < count; i++)
			one[i] = rank == 0 ? call + i : -1, other[i] = rank == 1 ? call - i : -1;
		/* In another order on each rank. */
		if (both && rank == 1)
			MPI_Start(&requests[1]);
		MPI_Start(&requests[0]);
		if (both && rank != 1)
			MPI_Start(&requests[1]);
		MPI_Wait(&requests[0], MPI_STATUS_IGNORE);
		if (both)
			MPI_Wait(&requests[1], MPI_STATUS_IGNORE);
		for (int i = (count - 1) % STEP; i < count; i += STEP)
			wrong += one[i] != call + i || (both && other[i] != call - i);
	}
	MPI_Request_free(&requests[0]);
	MPI_Request_free(&requests[1]);
	free(one), free(other);
	return wrong;
}

int main(int argc, char **argv)
{
	const char *of_open_mpi = getenv("OMPI_COMM_WORLD_RANK"), *of_mpich = getenv("PMI_RANK");
	const char *before = of_open_mpi ? of_open_mpi : of_mpich;
	if (getenv("GOVERNED_ODD") && before && !strcmp(before, "1"))
		setenv("LIBCOPY_GOVERNOR", "0", 1);
	if (getenv("GOVERNED_BOUND") && before) {
		cpu_set_t own;
		CPU_ZERO(&own);
		CPU_SET(atoi(before), &own);
		if (sched_setaffinity(0, sizeof(own), &own))
			return 3;
		/* The library has looked at it when it was loaded. */
		if (strcmp(getenv("GOVERNED_BOUND"), "now")) {
			setenv("GOVERNED_BOUND", "now", 1);
			execv("/proc/self/exe", argv);
			return 3;
		}
	}
	MPI_Init(&argc, &argv);
	const char *how = argv[1];
	int rank, size, calls = atoi(argv[2]), count = atoi(argv[3]) / sizeof(int), window = atoi(argv[4]);
	int is_bcast = !strcmp(how, "ibcast"), is_gather = !strcmp(how, "iallgather");
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	if (!strcmp(how, "ahead")) {
		/* Once together: then the ranks know each other. */
		MPI_Request first;
		int *buffer = calloc(count, sizeof(int));
		MPI_Ibcast(buffer, count, MPI_INT, 0, MPI_COMM_WORLD, &first);
		MPI_Barrier(MPI_COMM_WORLD);
		MPI_Wait(&first, MPI_STATUS_IGNORE);
		free(buffer);
		printf("%ld wrong\n", ahead(rank, size, calls, count));
		MPI_Finalize();
		return 0;
	}
	if (!strcmp(how, "bcast_init")) {
		printf("%ld wrong\n", again(rank, calls, count));
		MPI_Finalize();
		return 0;
	}
	size_t each = (size_t)count * size;
	int *one = malloc(sizeof(int) * count * window), *all = malloc(sizeof(int) * each * window);
	long wrong = 0;
	for (int call = 0; call < calls; call += window) {
		MPI_Request requests[MOST_WINDOW];
		MPI_Status statuses[MOST_WINDOW];
		for (int k = 0; k < window; k++) {
			int *mine = one + (size_t)k * count, *into = all + k * each, seed = call + k;
			int root = seed % size;
			for (int i = 0; i < count; i++)
				mine[i] = is_bcast && rank != root ? -1 : (is_bcast ? root : rank) + seed + i;
			if (is_bcast)
				MPI_Ibcast(mine, count, MPI_INT, root, MPI_COMM_WORLD, &requests[k]);
			else if (is_gather)
				MPI_Iallgather(mine, count, MPI_INT, into, count, MPI_INT, MPI_COMM_WORLD,
					       &requests[k]);
			else
				MPI_Iallreduce(mine, into, count, MPI_INT, MPI_SUM, MPI_COMM_WORLD,
					       &requests[k]);
			/* The ranks meet for them in the next blocking one. */
			if (call + k == 0)
				MPI_Barrier(MPI_COMM_WORLD);
		}
		MPI_Waitall(window, requests, statuses);
		for (int k = 0; k < window; k++) {
			int *mine = one + (size_t)k * count, *into = all + k * each, seed = call + k;
			for (int i = (count - 1) % STEP; i < count; i += STEP) {
				if (is_bcast)
					wrong += mine[i] != seed % size + seed + i;
				else if (!is_gather)
					wrong += into[i] != size * (seed + i) + size * (size - 1) / 2;
				for (int j = 0; is_gather && j < size; j++)
					wrong += into[(size_t)j * count + i] != j + seed + i;
			}
		}
	}
	printf("%ld wrong\n", wrong);
	free(one), free(all);
	MPI_Finalize();
	return wrong != 0;
}
