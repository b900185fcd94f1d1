// SPDX-License-Identifier: MIT OR Apache-2.0

/* Collectives whose buffers are MPI_IN_PLACE on the ranks that may say so, and the same with two
 * buffers, in turns: each several times with the same arguments, since what was found out about a
 * call holds for those like it. The arguments that MPI does not look at are none that it would
 * accept. Prints how many results are wrong. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TURNS = 6, MOST_RANKS = 8, MOST = 3000, ANY = -7 };
enum { GATHER, SCATTER, ALLGATHER, ALLTOALL, REDUCE, ALLREDUCE, SCAN, EXSCAN, FUNCTIONS };

static int rank, size;

/* What a rank contributes at a place in a turn. */
static int value(int turn, int from, int place)
{
	return turn * 1000003 + from * 10007 + place * 31;
}

/* The result at a place of this rank's buffer; UNTOUCHED where there is none. */
static const int UNTOUCHED = -1;

static int result(int function, int turn, int count, int root, int place)
{
	int part = place / count, sum = 0;
	int last = function == SCAN ? rank : function == EXSCAN ? rank - 1 : size - 1;
	switch (function) {
	case GATHER:
		return rank == root ? value(turn, part, place % count) : UNTOUCHED;
	case SCATTER:
		return place < count ? value(turn, root, rank * count + place) : UNTOUCHED;
	case ALLGATHER:
		return value(turn, part, place % count);
	case ALLTOALL:
		return value(turn, part, rank * count + place % count);
	case REDUCE:
		if (rank != root)
			return UNTOUCHED;
	}
	if (place >= count || last < 0)
		return UNTOUCHED;
	for (int from = 0; from <= last; from++)
		sum += value(turn, from, place);
	return sum;
}

/* Ranks of a call in turn `turn`, with `count` elements for each: how many are wrong. */
static int run(int function, int turn, int count, int *send, int *recv)
{
	int in_place = turn % 2, root = function == REDUCE ? 0 : size - 1, wrong = 0;
	int parts = function == GATHER || function == ALLGATHER ? 1 : size, at = 0;
	int is_mine = in_place && (rank == root || (function != GATHER && function != SCATTER && function != REDUCE));
	/* Where our own part is in the receive buffer; a scatter leaves it in the send buffer. */
	if (function == GATHER || function == ALLGATHER)
		at = rank * count;
	for (int i = 0; i < size * count; i++) {
		send[i] = i < parts * count ? value(turn, rank, i) : UNTOUCHED;
		recv[i] = UNTOUCHED;
	}
	if (is_mine && function != SCATTER)
		memcpy(recv + at, send, (function >= REDUCE ? 1 : parts) * count * sizeof(int));
	void *from = is_mine && function != SCATTER ? MPI_IN_PLACE : send;
	MPI_Datatype type = is_mine ? MPI_DATATYPE_NULL : MPI_INT;
	int each = is_mine ? ANY : count;
	switch (function) {
	case GATHER:
		MPI_Gather(from, each, type, recv, count, MPI_INT, root, MPI_COMM_WORLD);
		break;
	case SCATTER:
		MPI_Scatter(send, count, MPI_INT, is_mine ? MPI_IN_PLACE : recv, each, type, root, MPI_COMM_WORLD);
		break;
	case ALLGATHER:
		MPI_Allgather(from, each, type, recv, count, MPI_INT, MPI_COMM_WORLD);
		break;
	case ALLTOALL:
		MPI_Alltoall(from, each, type, recv, count, MPI_INT, MPI_COMM_WORLD);
		break;
	case REDUCE:
		MPI_Reduce(from, recv, count, MPI_INT, MPI_SUM, root, MPI_COMM_WORLD);
		break;
	case ALLREDUCE:
		MPI_Allreduce(from, recv, count, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
		break;
	case SCAN:
		MPI_Scan(from, recv, count, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
		break;
	default:
		MPI_Exscan(from, recv, count, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
	}
	/* What the first rank of an exscan has is anything. */
	if (function == EXSCAN && rank == 0)
		return 0;
	for (int i = 0; i < size * count; i++) {
		int expected = result(function, turn, count, root, i);
		if (is_mine && function == SCATTER)
			expected = UNTOUCHED;
		wrong += recv[i] != expected;
	}
	return wrong;
}

int main(int argc, char **argv)
{
	static const int counts[] = { 1, 9, 300, MOST };
	int wrong = 0, calls = 0;
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	int *send = malloc(MOST_RANKS * MOST * sizeof(int)), *recv = malloc(MOST_RANKS * MOST * sizeof(int));
	for (int function = 0; size <= MOST_RANKS && function < FUNCTIONS; function++)
		for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++)
			for (int turn = 0; turn < TURNS; turn++, calls++)
				wrong += run(function, turn, counts[i], send, recv);
	int all = 0;
	MPI_Reduce(&wrong, &all, 1, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
	if (rank == 0)
		printf("%d calls: %d wrong\n", calls, all);
	free(send);
	free(recv);
	MPI_Finalize();
	return 0;
}
