// SPDX-License-Identifier: MIT OR Apache-2.0

/* First messages of irregular data: each is sent out of memory that no message was sent from before, by a
 * process that leaves its buffer alone and does something else meanwhile, and received as dense bytes. Pieces of
 * 64 bytes, once at offsets that follow no rule (hindexed), once at equal distances (vector).
 * Prints, for each type, what a message took from the receiver's call on and whether every byte was right.
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

int main(int argc, char **argv)
{
	static double times[MOST_ROUNDS];
	MPI_Init(&argc, &argv);
	int rank, pieces = argc > 1 ? atoi(argv[1]) : 10000, rounds = argc > 2 ? atoi(argv[2]) : 3;
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	if (pieces < 1 || rounds < 1 || rounds > MOST_ROUNDS)
		MPI_Abort(MPI_COMM_WORLD, 2);
	MPI_Aint *places = malloc(sizeof(*places) * pieces), end = 0;
	int *lengths = malloc(sizeof(*lengths) * pieces);
	size_t bytes = (size_t)pieces * PIECE;
	end = place(pieces, places, lengths);
	for (int which = 0; which < 2; which++) {
		MPI_Datatype type;
		long wrong = 0;
		if (which) {
			MPI_Type_vector(pieces, PIECE, PIECE + GAP, MPI_BYTE, &type);
			for (int i = 0; i < pieces; i++)
				places[i] = (MPI_Aint)i * (PIECE + GAP);
		} else {
			MPI_Type_create_hindexed(pieces, lengths, places, MPI_BYTE, &type);
		}
		MPI_Type_commit(&type);
		/* No message begins where one of this type has begun, so that none is taken for a second one out of
		 * the same memory. */
		size_t step = ((size_t)end + 4095) / 4096 * 4096;
		unsigned char *in = map(bytes + 1), *all = map(step * rounds);
		for (int round = 0; round < rounds; round++) {
			unsigned char *out = all + step * round;
			for (MPI_Aint i = 0; i < end; i++)
				out[i] = value(i, round);
			memset(in, 0x5a, bytes + 1);
			MPI_Barrier(MPI_COMM_WORLD);
			if (rank == 0) {
				MPI_Request request;
				MPI_Isend(out, 1, type, 1, 0, MPI_COMM_WORLD, &request);
				elsewhere(1000);
				MPI_Wait(&request, MPI_STATUS_IGNORE);
			} else if (rank == 1) {
				elsewhere(200);
				double start = MPI_Wtime();
				MPI_Recv(in, bytes, MPI_BYTE, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
				times[round] = (MPI_Wtime() - start) * 1e3;
				for (int i = 0; i < pieces; i++)
					for (int j = 0; j < PIECE; j++)
						wrong += in[(size_t)i * PIECE + j] != value(places[i] + j, round);
				wrong += in[bytes] != 0x5a;
			}
		}
		qsort(times, rounds, sizeof(double), ascending);
		if (rank == 1)
			printf("%s %d pieces: median %.3f ms, lowest %.3f ms, highest %.3f ms, wrong %ld\n",
			       which ? "vector" : "hindexed", pieces, times[rounds / 2], times[0],
			       times[rounds - 1], wrong);
		munmap(all, step * rounds);
		munmap(in, bytes + 1);
		MPI_Type_free(&type);
	}
	MPI_Finalize();
	return 0;
}
