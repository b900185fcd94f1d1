// SPDX-License-Identifier: MIT OR Apache-2.0

/* First messages of types that are committed together, if the library has functions for that and an
 * argument asks for it, else by each process. Their sender is elsewhere, so that they are fetched,
 * for which the receiver has to know their layouts. Prints the same in any case. Two ranks.
 *
 * usage: committed [together]
 */
#include <libcopy_mpix.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checksum.h"

enum { TYPES = 5, COUNT = 3, SPAN = 12 << 20 };

/* 400,000 bytes and more in doubles; the receiver's may lie in another way. */
static MPI_Datatype make(int which, int rank)
{
	enum { N = 50000 };
	MPI_Datatype type;
	if (which % 2 == 0) {
		MPI_Type_vector(N, 1, 2 + rank + which, MPI_DOUBLE, &type);
		return type;
	}
	static int places[N];
	for (int i = 0; i < N; i++)
		places[i] = 3 * i + (i * 7 + which) % 3;
	MPI_Type_create_indexed_block(N, 1, places, MPI_DOUBLE, &type);
	return type;
}

int main(int argc, char **argv)
{
	int rank;
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	int together = argc > 1 && strcmp(argv[1], "together") == 0 && MPIX_Type_commit_comm;
	unsigned char *data = calloc(1, SPAN);
	for (size_t i = 0; rank == 0 && i < SPAN; i++)
		data[i] = i * 7 + i / 251;
	for (int round = 0; round < 2 * TYPES; round++) {
		MPI_Datatype type = make(round % TYPES, rank);
		int code = together ? MPIX_Type_commit_comm(&type, MPI_COMM_WORLD) :
				      MPI_Type_commit(&type);
		/* One element, then several. */
		for (int count = 1; count <= COUNT; count += COUNT - 1) {
			MPI_Request request;
			MPI_Status status;
			int bytes = 0;
			if (rank == 0)
				MPI_Isend(data, count, type, 1, 1, MPI_COMM_WORLD, &request);
			else
				MPI_Recv(data, count, type, 0, 1, MPI_COMM_WORLD, &status);
			MPI_Barrier(MPI_COMM_WORLD);
			if (rank == 0)
				MPI_Wait(&request, MPI_STATUS_IGNORE);
			else
				MPI_Get_count(&status, MPI_BYTE, &bytes);
			if (rank == 1)
				printf("%d %d: %d %d %016llx\n", round, count, code, bytes,
				       (unsigned long long)hash(data, SPAN));
		}
		code = together ? MPIX_Type_free_comm(&type, MPI_COMM_WORLD) : MPI_Type_free(&type);
		if (code || type != MPI_DATATYPE_NULL)
			printf("rank %d: not freed\n", rank);
	}
	free(data);
	MPI_Finalize();
	return 0;
}
