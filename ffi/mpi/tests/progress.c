// SPDX-License-Identifier: MIT OR Apache-2.0

/* A rank that is in a collective has messages under way that the others receive before they come to
 * it, as MPI allows. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 4 << 20, TAG = 7 };

static unsigned char *bytes, *all;

static void collective(int which, int size)
{
	int each = MOST / 4 / size;
	switch (which) {
	case 0:
		MPI_Bcast(all, MOST / 4, MPI_BYTE, size - 1, MPI_COMM_WORLD);
		break;
	case 1:
		MPI_Gather(bytes + MOST, each, MPI_BYTE, all, each, MPI_BYTE, 0, MPI_COMM_WORLD);
		break;
	case 2:
		MPI_Allgather(bytes + MOST, each, MPI_BYTE, all, each, MPI_BYTE, MPI_COMM_WORLD);
		break;
	default:
		MPI_Allreduce(bytes + MOST, all, MOST / 4, MPI_UNSIGNED_CHAR, MPI_BXOR, MPI_COMM_WORLD);
	}
}

int main(int argc, char **argv)
{
	int rank, size;
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	bytes = calloc(2, MOST);
	all = calloc(1, MOST);
	for (int which = 0; which < 4; which++) {
		for (int count = 1024; count <= MOST; count *= 8) {
			MPI_Request requests[64];
			if (rank == 0) {
				memset(bytes, which + 1, count);
				for (int i = 1; i < size; i++)
					MPI_Isend(bytes, count, MPI_BYTE, i, TAG, MPI_COMM_WORLD,
						  &requests[i]);
				collective(which, size);
				for (int i = 1; i < size; i++)
					MPI_Wait(&requests[i], MPI_STATUS_IGNORE);
			} else {
				memset(bytes, 0, count);
				MPI_Recv(bytes, count, MPI_BYTE, 0, TAG, MPI_COMM_WORLD,
					 MPI_STATUS_IGNORE);
				collective(which, size);
			}
			int right = bytes[0] == which + 1 && bytes[count - 1] == which + 1;
			int everywhere;
			MPI_Reduce(&right, &everywhere, 1, MPI_INT, MPI_MIN, 0, MPI_COMM_WORLD);
			if (rank == 0)
				printf("%d %d: %d\n", which, count, everywhere);
		}
	}
	free(bytes);
	free(all);
	MPI_Finalize();
	return 0;
}
