// SPDX-License-Identifier: MIT OR Apache-2.0

/* What programs with several requests share: datatypes of doubles, requests completed by all
 * functions, and a line with the checksums of all ranks' buffers.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "random.h"

enum { MOST_REQUESTS = 16, MOST_RANKS = 64 };

/* The shapes of `doubles_of`. */
enum shape { DENSE, GAPS, BLOCKS, SPACED };

/* A datatype of some doubles in `*count` elements: dense, each with a gap behind it, or in one
 * block with a gap behind it. SPACED is like GAPS, with a gap behind the last one too.
 */
static MPI_Datatype doubles_of(int doubles, enum shape shape, int *count)
{
	MPI_Datatype type, inner = MPI_DATATYPE_NULL;
	*count = shape == DENSE ? doubles : 1;
	switch (shape) {
	case DENSE:
		MPI_Type_dup(MPI_DOUBLE, &type);
		break;
	case GAPS:
		MPI_Type_vector(doubles, 1, 2, MPI_DOUBLE, &type);
		break;
	case SPACED:
		MPI_Type_vector(doubles, 1, 2, MPI_DOUBLE, &inner);
		MPI_Type_create_resized(inner, 0, 16 * (MPI_Aint)doubles, &type);
		break;
	default:
		MPI_Type_contiguous(doubles, MPI_DOUBLE, &inner);
		MPI_Type_create_resized(inner, 0, 8 * ((MPI_Aint)doubles + 3), &type);
	}
	if (inner != MPI_DATATYPE_NULL)
		MPI_Type_free(&inner);
	MPI_Type_commit(&type);
	return type;
}

/* Completes `active` active requests of `count`, the others being inactive, in one of eight
 * ways. */
static void complete(int count, MPI_Request *requests, int active, int way)
{
	int done = 0, flag, index, n, indices[MOST_REQUESTS];
	/* Compilers take MPICH's address for an array without elements. */
	MPI_Status status, statuses[MOST_REQUESTS], *volatile ignored = MPI_STATUSES_IGNORE;

	switch (way) {
	case 0:
		MPI_Waitall(count, requests, ignored);
		break;
	case 1:
		for (int i = count - 1; i >= 0; i--)
			MPI_Wait(&requests[i], &status);
		break;
	case 2:
		for (; done < active; done++)
			MPI_Waitany(count, requests, &index, &status);
		/* Inactive ones are not chosen. */
		MPI_Waitany(count, requests, &index, MPI_STATUS_IGNORE);
		if (index != MPI_UNDEFINED)
			MPI_Abort(MPI_COMM_WORLD, 3);
		break;
	case 3:
		for (flag = 0; !flag;)
			MPI_Testall(count, requests, &flag, statuses);
		break;
	case 4:
		while (done < active) {
			MPI_Waitsome(count, requests, &n, indices, statuses);
			done += n;
		}
		break;
	case 5:
		while (done < active) {
			MPI_Testsome(count, requests, &n, indices, ignored);
			done += n;
		}
		break;
	case 6:
		while (done < active) {
			MPI_Testany(count, requests, &index, &flag, &status);
			done += flag;
		}
		break;
	default:
		for (int i = 0; i < count; i++) {
			for (flag = 0; !flag && requests[i] != MPI_REQUEST_NULL;)
				MPI_Request_get_status(requests[i], &flag, &status);
			if (requests[i] != MPI_REQUEST_NULL)
				MPI_Request_get_status(requests[i], &flag, MPI_STATUS_IGNORE);
			MPI_Test(&requests[i], &flag, &status);
			if (!flag)
				MPI_Abort(MPI_COMM_WORLD, 4);
		}
	}
}

/* The three communicators that both programs use: all ranks, a part of them, all in the reverse
 * order. */
static void communicators(MPI_Comm *comms, int color)
{
	int rank;
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	comms[0] = MPI_COMM_WORLD;
	MPI_Comm_split(MPI_COMM_WORLD, color, rank, &comms[1]);
	MPI_Comm_split(MPI_COMM_WORLD, 0, -rank, &comms[2]);
}

/* Rank 0 prints `what` and the checksums of both buffers of all ranks. */
static void print_checksums(const char *what, const void *send, const void *recv, size_t room)
{
	uint64_t sums[2] = { hash(send, room), hash(recv, room) }, every[2 * MOST_RANKS];
	int rank, size;
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	MPI_Gather(sums, 2, MPI_UINT64_T, every, 2, MPI_UINT64_T, 0, MPI_COMM_WORLD);
	if (rank != 0)
		return;
	printf("%s:", what);
	for (int i = 0; i < 2 * size; i++)
		printf(" %016llx", (unsigned long long)every[i]);
	printf("\n");
	fflush(stdout);
}
