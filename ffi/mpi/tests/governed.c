// SPDX-License-Identifier: MIT OR Apache-2.0

/*
 * Calls collectives of one class again and again, checks every result, and prints what it received.
 *
 *   governed CALLS BYTES
 *
 * In between come calls of other classes, with datatypes that differ between the ranks, and a
 * duplicate of the communicator with a few calls. GOVERNED_ODD=1: rank 1 alone does without the
 * governor. With VIRTUAL_CLOCK=own, libcopy_mpi.so takes long.
 */
#include "virtual_clock.h"

#include <mpi.h>
#include <stdio.h>

int main(int argc, char **argv)
{
	const char *odd = getenv("GOVERNED_ODD");
	const char *of_open_mpi = getenv("OMPI_COMM_WORLD_RANK"), *of_mpich = getenv("PMI_RANK");
	const char *before = of_open_mpi ? of_open_mpi : of_mpich;
	if (odd && before && !strcmp(before, "1"))
		setenv("LIBCOPY_GOVERNOR", "0", 1);
	MPI_Init(&argc, &argv);
	int rank, size, calls = argc > 1 ? atoi(argv[1]) : 100;
	int bytes = argc > 2 ? atoi(argv[2]) : 65536, count = bytes / sizeof(int);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	int *one = malloc(bytes), *all = malloc((size_t)bytes * size), *sum = malloc(bytes);
	MPI_Datatype pairs;
	MPI_Type_vector(count / 2, 2, 2, MPI_INT, &pairs);
	MPI_Type_commit(&pairs);
	MPI_Comm other;
	MPI_Comm_dup(MPI_COMM_WORLD, &other);
	long wrong = 0;
	for (int call = 0; call < calls; call++) {
		int root = call % size;
		for (int i = 0; i < count; i++)
			one[i] = rank == root ? call + i : -1;
		/* The sender's type is another one than the receivers'. */
		if (rank == root)
			MPI_Bcast(one, 1, pairs, root, MPI_COMM_WORLD);
		else
			MPI_Bcast(one, count, MPI_INT, root, MPI_COMM_WORLD);
		for (int i = 0; i < count; i++)
			wrong += one[i] != call + i;
		for (int i = 0; i < count; i++)
			one[i] = rank + call + i;
		MPI_Allreduce(one, sum, count, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
		for (int i = 0; i < count; i++)
			wrong += sum[i] != size * (call + i) + size * (size - 1) / 2;
		MPI_Comm comm = call % 7 ? MPI_COMM_WORLD : other;
		MPI_Allgather(one, count, MPI_INT, all, count, MPI_INT, comm);
		for (int i = 0; i < size; i++)
			wrong += all[i * count] != i + call || all[(i + 1) * count - 1] != i + call + count - 1;
	}
	printf("rank %d: %ld wrong\n", rank, wrong);
	MPI_Type_free(&pairs);
	MPI_Comm_free(&other);
	free(one), free(all), free(sum);
	MPI_Finalize();
	return wrong != 0;
}
