// SPDX-License-Identifier: MIT OR Apache-2.0

/*
 * Reduces the same numbers again and again, while ranks come late and others take their processors,
 * and says how often a result had other bits than the first one, and what hash all first ones have.
 *
 *   reductions CALLS [BYTES...]
 *
 * The numbers differ by many orders of magnitude, so that a sum depends on the order in which it is
 * made.
 */
#include <mpi.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "persistent.h"
#include "random.h"

enum { ALLREDUCE, IN_PLACE, IALLREDUCE, REDUCE, IREDUCE, BLOCK, SCATTER, SCAN, EXSCAN, INIT_AND_START, FUNCTIONS };

static const char *const names[] = { "Allreduce", "Allreduce in place", "Iallreduce", "Reduce", "Ireduce",
				     "Reduce_scatter_block", "Reduce_scatter", "Scan", "Exscan", "Allreduce_init" };
static int sizes[] = { 8, 64 << 10, 256 << 10, (1 << 20) + 256 };
enum { SIZES = sizeof sizes / sizeof *sizes };

static volatile int over;

static void *spin(void *nothing)
{
	struct timespec pause = { 0, 3000000 };
	while (!over) {
		for (volatile int i = 0; i < 1000000; i++)
			;
		nanosleep(&pause, NULL);
	}
	return nothing;
}

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	int rank, size, calls = argc > 1 ? atoi(argv[1]) : 100, used = argc > 2 ? argc - 2 : SIZES;
	for (int i = 0; i < used && i < SIZES && argc > 2; i++)
		sizes[i] = atoi(argv[2 + i]);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	/* Only when a rank calls depends on this. */
	uint64_t late = 1 + now.tv_nsec + getpid();
	pthread_t load;
	if (rank == size - 1)
		pthread_create(&load, NULL, spin, NULL);
	uint64_t all = 0;
	int differ = 0, *counts = malloc(size * sizeof *counts);
	for (int s = 0; s < used && s < SIZES; s++)
		for (int function = 0; function < FUNCTIONS; function++) {
			int is_float = function == REDUCE || function == SCATTER;
			int is_complex = function == IN_PLACE;
			MPI_Datatype type = is_float ? MPI_FLOAT : is_complex ? MPI_C_DOUBLE_COMPLEX : MPI_DOUBLE;
			int element = is_float ? 4 : is_complex ? 16 : 8;
			/* What each rank gives, and what it gets. */
			int scatters = function == BLOCK || function == SCATTER, root = size - 1;
			int each = sizes[s] / element / (scatters ? size : 1), count = 0, mine = each;
			for (int i = 0; i < size; i++)
				count += counts[i] = each + (function == SCATTER ? i : 0);
			if (scatters)
				mine = counts[rank];
			else
				count = mine = each ? each : 1;
			size_t bytes = (size_t)count * element, result = (size_t)mine * element;
			char *send = malloc(bytes + 1), *recv = malloc(bytes + 1), *first = malloc(result + 1);
			state = 1 + rank * 7919 + s;
			for (size_t i = 0; i < bytes / (is_float ? 4 : 8); i++) {
				double one = (1 + next(1 << 30)) * (next(2) ? 1.0 : -1.0);
				one *= 1ull << next(30);
				if (is_float)
					((float *)send)[i] = one;
				else
					((double *)send)[i] = one;
			}
			int gets = (function != REDUCE && function != IREDUCE) || rank == root, other = 0;
			if (function == EXSCAN && !rank)
				gets = 0;
			MPI_Request request, persistent = MPI_REQUEST_NULL;
			if (function == INIT_AND_START)
				INIT(Allreduce)(send, recv, count, type, MPI_SUM, MPI_COMM_WORLD, MPI_INFO_NULL,
						&persistent);
			state = late;
			for (int call = 0; call < calls; call++) {
				memset(recv, 0, bytes);
				if (next(4) == 0)
					usleep(next(500));
				switch (function) {
				case ALLREDUCE:
					MPI_Allreduce(send, recv, count, type, MPI_SUM, MPI_COMM_WORLD);
					break;
				case IN_PLACE:
					memcpy(recv, send, bytes);
					MPI_Allreduce(MPI_IN_PLACE, recv, count, type, MPI_SUM, MPI_COMM_WORLD);
					break;
				case IALLREDUCE:
					MPI_Iallreduce(send, recv, count, type, MPI_SUM, MPI_COMM_WORLD, &request);
					MPI_Wait(&request, MPI_STATUS_IGNORE);
					break;
				case REDUCE:
					MPI_Reduce(send, recv, count, type, MPI_SUM, root, MPI_COMM_WORLD);
					break;
				case IREDUCE:
					MPI_Ireduce(send, recv, count, type, MPI_SUM, root, MPI_COMM_WORLD, &request);
					MPI_Wait(&request, MPI_STATUS_IGNORE);
					break;
				case BLOCK:
					MPI_Reduce_scatter_block(send, recv, mine, type, MPI_SUM, MPI_COMM_WORLD);
					break;
				case SCATTER:
					MPI_Reduce_scatter(send, recv, counts, type, MPI_SUM, MPI_COMM_WORLD);
					break;
				case SCAN:
					MPI_Scan(send, recv, count, type, MPI_SUM, MPI_COMM_WORLD);
					break;
				case EXSCAN:
					MPI_Exscan(send, recv, count, type, MPI_SUM, MPI_COMM_WORLD);
					break;
				case INIT_AND_START:
					MPI_Start(&persistent);
					MPI_Wait(&persistent, MPI_STATUS_IGNORE);
				}
				if (!gets)
					continue;
				if (call == 0)
					memcpy(first, recv, result);
				other += memcmp(first, recv, result) != 0;
			}
			late = state;
			if (persistent != MPI_REQUEST_NULL)
				MPI_Request_free(&persistent);
			if (gets)
				all = all * 31 + hash(first, result);
			if (other)
				printf("rank %d: MPI_%s of %d bytes: %d of %d are other bits\n", rank, names[function],
				       sizes[s], other, calls);
			differ += other;
			free(send), free(recv), free(first);
		}
	printf("rank %d: %d differ, hash %016llx\n", rank, differ, (unsigned long long)all);
	free(counts);
	if (rank == size - 1) {
		over = 1;
		pthread_join(load, NULL);
	}
	MPI_Finalize();
	return 0;
}
