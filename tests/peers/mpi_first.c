// SPDX-License-Identifier: MIT OR Apache-2.0

/* First messages of irregular data: each is sent out of memory that no message was sent from
 * before, by a process that leaves its buffer alone and does something else meanwhile. Pieces of 64
 * bytes, received as dense bytes, once at offsets that follow no rule (hindexed), once at equal
 * distances (vector); and, for their bytes more than for their times, short lists that repeat,
 * pieces of several lengths, and pieces that are received in other ones. Prints, for each type,
 * what a message took from the receiver's call on and whether every byte was right.
 *
 * usage: mpi_first PIECES ROUNDS
 */
#include "mpi_pieces.h"
#include <time.h>

enum { MOST_ROUNDS = 1000 };

static unsigned char value(size_t i, int round)
{
	return i * 7 + i / 253 + round * 31;
}

/* What a process does that does not call MPI. */
static void elsewhere(long milliseconds)
{
	struct timespec time = { milliseconds / 1000, milliseconds % 1000 * 1000000 };
	while (nanosleep(&time, &time))
		;
}

enum kind { HINDEXED, VECTOR, NESTED, MIXED, SCATTERED, KINDS };
static const char *const names[KINDS] = { "hindexed", "vector", "nested", "mixed", "scattered" };

/* Pieces of a list that repeats. */
enum { LIST = 50 };
/* What is received in pieces: so many bytes, so far apart. */
enum { PART = 8, PARTS_APART = 12 };

/* How many pieces an element of a kind has. */
static int in_element(enum kind kind, int pieces)
{
	return kind == NESTED && pieces > LIST ? LIST : pieces;
}

/* Where the pieces of a kind are; returns the bytes that they reach over. */
static MPI_Aint lay_out(enum kind kind, int pieces, MPI_Aint *places, int *lengths)
{
	MPI_Aint end = place(pieces, places, lengths);
	if (kind == NESTED) {
		int list = in_element(kind, pieces);
		MPI_Aint extent = places[list - 1] + PIECE + GAP;
		for (int i = list; i < pieces; i++)
			places[i] = i / list * extent + places[i % list];
		end = places[pieces - 1] + PIECE;
	}
	for (int i = 0; i < pieces; i++) {
		if (kind == VECTOR)
			places[i] = (MPI_Aint)i * (PIECE + GAP);
		else if (kind == MIXED)
			lengths[i] = PIECE - PART * (i % 4);
		/* Pieces that do not begin where the receiver's parts of a message do. */
		else if (kind == SCATTERED)
			lengths[i] = 3 * PART;
	}
	return end;
}

/* The type of an element. */
static void make(enum kind kind, int pieces, MPI_Aint *places, int *lengths, MPI_Datatype *type)
{
	int list = in_element(kind, pieces);
	if (kind == VECTOR) {
		MPI_Type_vector(pieces, PIECE, PIECE + GAP, MPI_BYTE, type);
	} else {
		MPI_Datatype once;
		MPI_Type_create_hindexed(list, lengths, places, MPI_BYTE, &once);
		MPI_Aint extent = list < pieces ? places[list] - places[0] : places[list - 1] + PIECE;
		MPI_Type_create_resized(once, 0, extent, type);
		MPI_Type_free(&once);
	}
	MPI_Type_commit(type);
}

int main(int argc, char **argv)
{
	static double times[MOST_ROUNDS];
	MPI_Init(&argc, &argv);
	int rank, pieces = argc > 1 ? atoi(argv[1]) : 10000, rounds = argc > 2 ? atoi(argv[2]) : 3;
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	if (pieces < 1 || rounds < 1 || rounds > MOST_ROUNDS)
		MPI_Abort(MPI_COMM_WORLD, 2);
	MPI_Aint *places = malloc(sizeof(*places) * pieces);
	int *lengths = malloc(sizeof(*lengths) * pieces);
	for (int kind = 0; kind < KINDS; kind++) {
		long wrong = 0;
		MPI_Aint end = lay_out(kind, pieces, places, lengths);
		MPI_Datatype type, into;
		make(kind, pieces, places, lengths, &type);
		int count = pieces / in_element(kind, pieces), sent = count * in_element(kind, pieces);
		size_t bytes = 0;
		for (int i = 0; i < sent; i++)
			bytes += lengths[i];
		int parts = bytes / PART, apart = kind == SCATTERED ? PARTS_APART : PART;
		MPI_Type_vector(parts, PART, apart, MPI_BYTE, &into);
		MPI_Type_commit(&into);
		/* No message begins where one of this type has begun, so that none is taken for a
		 * second one out of the same memory. */
		size_t step = ((size_t)end + 4095) / 4096 * 4096, room = (size_t)parts * apart;
		unsigned char *in = map(room + 1), *all = map(step * rounds);
		for (int round = 0; round < rounds; round++) {
			unsigned char *out = all + step * round;
			for (MPI_Aint i = 0; i < end; i++)
				out[i] = value(i, round);
			memset(in, 0x5a, room + 1);
			MPI_Barrier(MPI_COMM_WORLD);
			if (rank == 0) {
				MPI_Request request;
				MPI_Isend(out, count, type, 1, 0, MPI_COMM_WORLD, &request);
				elsewhere(1000);
				MPI_Wait(&request, MPI_STATUS_IGNORE);
			} else if (rank == 1) {
				elsewhere(200);
				double start = MPI_Wtime();
				MPI_Recv(in, 1, into, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
				times[round] = (MPI_Wtime() - start) * 1e3;
				size_t at = 0;
				for (int i = 0; i < sent; i++)
					for (int j = 0; j < lengths[i]; j++, at++)
						wrong += in[at / PART * apart + at % PART] != value(places[i] + j, round);
				for (size_t i = 0; i < room; i++)
					wrong += i % apart >= PART && in[i] != 0x5a;
				wrong += in[room] != 0x5a;
			}
		}
		qsort(times, rounds, sizeof(double), ascending);
		if (rank == 1)
			printf("%s %d pieces: median %.3f ms, lowest %.3f ms, highest %.3f ms, wrong %ld\n",
			       names[kind], pieces, times[rounds / 2], times[0], times[rounds - 1], wrong);
		munmap(all, step * rounds);
		munmap(in, room + 1);
		MPI_Type_free(&type);
		MPI_Type_free(&into);
	}
	MPI_Finalize();
	return 0;
}
