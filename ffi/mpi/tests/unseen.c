// SPDX-License-Identifier: MIT OR Apache-2.0

/*
 * Short collectives with many predefined datatypes, which some of the ranks have just used
 * elsewhere and others have not, and with types of one use on some ranks, whose handles come back
 * as those of others: what a rank remembers of a datatype must not decide which calls it counts.
 * Prints how many results were right.
 *
 *   unseen CALLS
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "random.h"

enum { MOST = 512 };

static unsigned char mine[MOST], all[64 * MOST];

/* A number of one of several sequences. */
static int number(uint64_t *sequence, int below)
{
	state = *sequence;
	int found = (int)next((uint64_t)below);

	*sequence = state;
	return found;
}

/* What a rank sends in a call. */
static unsigned char byte(int rank, int call, int at)
{
	return (unsigned char)(rank * 37 + call * 11 + at);
}

static void fill(int rank, int call)
{
	for (int at = 0; at < MOST; at++)
		mine[at] = byte(rank, call, at);
}

static int is_from(const unsigned char *bytes, int rank, int call, int start, int length)
{
	for (int at = 0; at < length; at++)
		if (bytes[at] != byte(rank, call, start + at))
			return 0;
	return 1;
}

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	MPI_Datatype types[] = {
		MPI_CHAR, MPI_SIGNED_CHAR, MPI_UNSIGNED_CHAR, MPI_BYTE, MPI_WCHAR, MPI_SHORT, MPI_UNSIGNED_SHORT,
		MPI_INT, MPI_UNSIGNED, MPI_LONG, MPI_UNSIGNED_LONG, MPI_LONG_LONG, MPI_UNSIGNED_LONG_LONG,
		MPI_FLOAT, MPI_DOUBLE, MPI_INT8_T, MPI_INT16_T, MPI_INT32_T, MPI_INT64_T, MPI_UINT8_T,
		MPI_UINT16_T, MPI_UINT32_T, MPI_UINT64_T, MPI_C_BOOL, MPI_AINT, MPI_OFFSET, MPI_COUNT,
		MPI_C_FLOAT_COMPLEX, MPI_C_DOUBLE_COMPLEX, MPI_2INT, MPI_LONG_DOUBLE,
	};
	const int known = sizeof types / sizeof *types;
	int rank, size, right = 0, calls = argc > 1 ? atoi(argv[1]) : 1000;

	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	uint64_t together = 1, alone = 2 + (uint64_t)rank;
	for (int call = 0; call < calls; call++) {
		for (int left = number(&alone, 4) * rank; left > 0; left--)
			MPI_Bcast(all, 1, types[number(&alone, known)], 0, MPI_COMM_SELF);

		MPI_Datatype type = types[number(&together, known)];
		int bytes, root = number(&together, size), what = number(&together, 6);
		MPI_Type_size(type, &bytes);
		int count = 1 + number(&together, MOST / bytes / (what == 5 ? size : 1));
		int length = count * bytes, ours = 1;

		fill(rank, call);
		switch (what) {
		case 0:
			MPI_Bcast(mine, count, type, root, MPI_COMM_WORLD);
			ours = is_from(mine, root, call, 0, length);
			break;
		case 1:
			MPI_Gather(mine, count, type, all, count, type, root, MPI_COMM_WORLD);
			for (int from = 0; rank == root && from < size; from++)
				ours &= is_from(all + from * length, from, call, 0, length);
			break;
		case 2:
			MPI_Allgather(mine, count, type, all, count, type, MPI_COMM_WORLD);
			for (int from = 0; from < size; from++)
				ours &= is_from(all + from * length, from, call, 0, length);
			break;
		case 3: {
			int own = rank + call, sum = 0, most = 0;

			MPI_Allreduce(&own, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
			MPI_Reduce(&own, &most, 1, MPI_INT, MPI_MAX, root, MPI_COMM_WORLD);
			ours = sum == size * call + size * (size - 1) / 2 && (rank != root || most == size - 1 + call);
			break;
		}
		case 4: {
			MPI_Datatype own = type;
			int made = (rank + call) % 2;

			if (made) {
				MPI_Type_contiguous(count, type, &own);
				MPI_Type_commit(&own);
			}
			MPI_Bcast(mine, made ? 1 : count, own, root, MPI_COMM_WORLD);
			ours = is_from(mine, root, call, 0, length);
			if (made)
				MPI_Type_free(&own);
			break;
		}
		default:
			MPI_Alltoall(mine, count, type, all, count, type, MPI_COMM_WORLD);
			for (int from = 0; from < size; from++)
				ours &= is_from(all + from * length, from, call, rank * length, length);
		}
		right += ours;
	}
	int everywhere = 0;
	MPI_Reduce(&right, &everywhere, 1, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
	if (rank == 0)
		printf("%d of %d right\n", everywhere, calls * size);
	MPI_Finalize();
	return 0;
}
