// SPDX-License-Identifier: MIT OR Apache-2.0

/* Programs of one kind of call each, for `scripts/bench verdict`: those that gain by libcopy, those
 * that lose, and those that do nothing that it could do. Between calls each rank writes its buffer.
 * Prints a sum of what was received.
 *
 * usage: mpi_verdict bcast|duplicates|allgather|alltoall|allreduce|typed|small CALLS BYTES
 *        duplicates: broadcasts, 400 on each of many duplicates of MPI_COMM_WORLD
 */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Calls on a duplicate of a communicator. */
enum { FEW = 400 };

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	int rank, size;
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	const char *kind = argc > 1 ? argv[1] : "";
	int calls = argc > 2 ? atoi(argv[2]) : 0, bytes = argc > 3 ? atoi(argv[3]) : 0;
	int count = bytes / (int)sizeof(int32_t), pieces = count / 4;
	if (calls < 1 || pieces < 1) {
		fprintf(stderr, "usage: %s bcast|duplicates|allgather|alltoall|allreduce|typed|small CALLS BYTES\n",
			argv[0]);
		MPI_Abort(MPI_COMM_WORLD, 2);
	}
	int32_t *mine = malloc((size_t)bytes * size), *all = malloc((size_t)bytes * size);
	memset(all, 0, (size_t)bytes * size);
	/* Every other pair of integers. */
	MPI_Datatype pairs;
	MPI_Type_vector(pieces, 2, 4, MPI_INT32_T, &pairs);
	MPI_Type_commit(&pairs);
	uint32_t sum = 0;
	MPI_Comm duplicate = MPI_COMM_NULL;
	for (int call = 0; call < calls; call++) {
		for (int i = 0; i < count * (strcmp(kind, "alltoall") ? 1 : size); i++)
			mine[i] = call + i * (rank + 1);
		if (!strcmp(kind, "bcast")) {
			MPI_Bcast(rank ? all : mine, count, MPI_INT32_T, 0, MPI_COMM_WORLD);
		} else if (!strcmp(kind, "duplicates")) {
			if (call % FEW == 0) {
				if (call > 0)
					MPI_Comm_free(&duplicate);
				MPI_Comm_dup(MPI_COMM_WORLD, &duplicate);
			}
			MPI_Bcast(rank ? all : mine, count, MPI_INT32_T, 0, duplicate);
		} else if (!strcmp(kind, "allgather")) {
			MPI_Allgather(mine, count, MPI_INT32_T, all, count, MPI_INT32_T, MPI_COMM_WORLD);
		} else if (!strcmp(kind, "alltoall")) {
			MPI_Alltoall(mine, count, MPI_INT32_T, all, count, MPI_INT32_T, MPI_COMM_WORLD);
		} else if (!strcmp(kind, "allreduce")) {
			MPI_Allreduce(mine, all, count, MPI_INT32_T, MPI_SUM, MPI_COMM_WORLD);
		} else if (!strcmp(kind, "typed")) {
			int to = (rank + 1) % size, from = (rank + size - 1) % size;
			MPI_Sendrecv(mine, 1, pairs, to, 0, all, 1, pairs, from, 0, MPI_COMM_WORLD,
				     MPI_STATUS_IGNORE);
		} else {
			MPI_Allreduce(mine, all, 2, MPI_INT32_T, MPI_SUM, MPI_COMM_WORLD);
		}
		sum = sum * 31 + all[call % count];
	}
	printf("rank %d: %u\n", rank, sum);
	if (duplicate != MPI_COMM_NULL)
		MPI_Comm_free(&duplicate);
	MPI_Type_free(&pairs);
	free(mine), free(all);
	MPI_Finalize();
	return 0;
}
