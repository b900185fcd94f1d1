// SPDX-License-Identifier: MIT OR Apache-2.0

/*
 * Rank 0 sends messages of one class again and again, and rank 1 checks all bytes.
 *
 *   governed_messages send|ssend|isend|start|sendrecv|replace|typed|layouts CALLS BYTES
 *
 * isend and start send four at once, start with persistent requests; typed sends a vector, layouts
 * that one and in the second half of the calls one whose blocks are twice as far apart. With
 * VIRTUAL_CLOCK=FILE, libcopy_mpi.so takes long.
 */
#include "virtual_clock.h"

#include <mpi.h>
#include <stdio.h>

enum { WINDOW = 4, BLOCK = 16 };

static void fill(int *at, int count, int call)
{
	for (int i = 0; i < count; i++)
		at[i] = call * 7919 + i;
}

static long differ(const int *at, int count, int call)
{
	long wrong = 0;
	for (int i = 0; i < count; i++)
		wrong += at[i] != call * 7919 + i;
	return wrong;
}

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	const char *how = argv[1];
	int rank, calls = atoi(argv[2]), bytes = atoi(argv[3]), count = bytes / sizeof(int);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	int is_start = !strcmp(how, "start"), is_window = is_start || !strcmp(how, "isend");
	int each = is_window ? WINDOW : 1;
	int is_layouts = !strcmp(how, "layouts"), is_typed = is_layouts || !strcmp(how, "typed");
	int is_two_way = !strcmp(how, "sendrecv");
	int is_replace = !strcmp(how, "replace"), peer = 1 - rank;
	int *from = malloc(4 * (size_t)bytes * each), *to = malloc((size_t)bytes * each);
	long wrong = 0;
	MPI_Datatype types[2];
	for (int i = 0; i < 2; i++) {
		MPI_Type_vector(count / BLOCK, BLOCK, (2 + 2 * i) * BLOCK, MPI_INT, &types[i]);
		MPI_Type_commit(&types[i]);
	}
	MPI_Request requests[WINDOW];
	for (int i = 0; i < each && rank == 0 && is_start; i++)
		MPI_Send_init(from + i * count, count, MPI_INT, 1, 1, MPI_COMM_WORLD, &requests[i]);
	for (int call = 0; call < calls; call += each) {
		MPI_Status statuses[WINDOW];
		int second = is_layouts && call >= calls / 2;
		for (int i = 0; i < each; i++) {
			int *mine = from + i * count;
			fill(mine, is_typed ? 4 * count : count, call + i);
			if (is_two_way) {
				MPI_Sendrecv(mine, count, MPI_INT, peer, 1, to, count, MPI_INT, peer, 1,
					     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
			} else if (is_replace) {
				MPI_Sendrecv_replace(mine, count, MPI_INT, peer, 1, peer, 1,
						     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
				memcpy(to, mine, bytes);
			} else if (rank == 1) {
				MPI_Irecv(to + i * count, count, MPI_INT, 0, 1, MPI_COMM_WORLD, &requests[i]);
			} else if (is_start) {
				MPI_Start(&requests[i]);
			} else if (is_window) {
				MPI_Isend(mine, count, MPI_INT, 1, 1, MPI_COMM_WORLD, &requests[i]);
			} else if (is_typed) {
				MPI_Send(mine, 1, types[second], 1, 1, MPI_COMM_WORLD);
			} else if (!strcmp(how, "ssend")) {
				MPI_Ssend(mine, count, MPI_INT, 1, 1, MPI_COMM_WORLD);
			} else {
				MPI_Send(mine, count, MPI_INT, 1, 1, MPI_COMM_WORLD);
			}
		}
		if (!is_two_way && !is_replace && (rank == 1 || is_window))
			MPI_Waitall(each, requests, statuses);
		/* So that the sender does not run ahead. */
		if (!is_two_way && !is_replace && rank == 1)
			MPI_Send(NULL, 0, MPI_INT, 0, 2, MPI_COMM_WORLD);
		else if (!is_two_way && !is_replace)
			MPI_Recv(NULL, 0, MPI_INT, 1, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		for (int i = 0; i < each && (rank == 1 || is_two_way || is_replace); i++) {
			int *other = to + i * count;
			if (!is_typed) {
				wrong += differ(other, count, call + i);
				continue;
			}
			for (int block = 0; block < count / BLOCK; block++)
				for (int j = 0; j < BLOCK; j++)
					wrong += other[block * BLOCK + j] != call * 7919 +
										(2 + 2 * second) * block * BLOCK + j;
		}
	}
	for (int i = 0; i < each && rank == 0 && is_start; i++)
		MPI_Request_free(&requests[i]);
	printf("%ld wrong\n", wrong);
	MPI_Type_free(&types[0]);
	MPI_Type_free(&types[1]);
	free(from), free(to);
	MPI_Finalize();
	return wrong != 0;
}
