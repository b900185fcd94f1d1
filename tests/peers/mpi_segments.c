// SPDX-License-Identifier: MIT OR Apache-2.0

/* Messages of irregular types from the same memory, there and back: pieces of 64 bytes at offsets
 * that follow no rule, once as one type of all pieces (hindexed), once as structures of unlike
 * elements. Prints, for each type, how the time of a message is distributed and whether every byte
 * was right.
 *
 * usage: mpi_segments PIECES ROUNDS [UNMAP]
 *
 * UNMAP: the memory is given back and made anew every UNMAP rounds.
 */
#include "mpi_pieces.h"

enum { MOST_ROUNDS = 10000 };

static unsigned char value(size_t i, int round, int rank)
{
	return i * 7 + i / 253 + round * 31 + rank * 101;
}

int main(int argc, char **argv)
{
	static double times[MOST_ROUNDS];
	MPI_Init(&argc, &argv);
	int rank, pieces = argc > 1 ? atoi(argv[1]) : 1000, rounds = argc > 2 ? atoi(argv[2]) : 5;
	int unmap = argc > 3 ? atoi(argv[3]) : 0;
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	if (pieces < 1 || rounds < 1 || rounds > MOST_ROUNDS)
		MPI_Abort(MPI_COMM_WORLD, 2);
	MPI_Aint *places = malloc(sizeof(*places) * 2 * pieces), end = 0;
	int *lengths = malloc(sizeof(*lengths) * 2 * pieces);
	MPI_Datatype *parts = malloc(sizeof(*parts) * 2 * pieces), types[2];
	end = place(pieces, places, lengths);
	MPI_Type_create_hindexed(pieces, lengths, places, MPI_BYTE, &types[0]);
	for (int i = pieces - 1; i >= 0; i--) {
		places[2 * i] = places[i];
		places[2 * i + 1] = places[i] + PIECE / 2;
		parts[2 * i] = MPI_DOUBLE;
		parts[2 * i + 1] = MPI_INT;
		lengths[2 * i] = PIECE / 2 / (int)sizeof(double);
		lengths[2 * i + 1] = PIECE / 2 / (int)sizeof(int);
	}
	MPI_Type_create_struct(2 * pieces, lengths, places, parts, &types[1]);
	unsigned char *out = map(end), *in = map(end);
	for (int which = 0; which < 2; which++) {
		long wrong = 0;
		MPI_Type_commit(&types[which]);
		for (int round = -2; round < rounds; round++) {
			if (unmap && round > 0 && round % unmap == 0) {
				munmap(out, end);
				munmap(in, end);
				out = map(end);
				in = map(end);
			}
			for (MPI_Aint i = 0; i < end; i++)
				out[i] = value(i, round, rank);
			memset(in, 0x5a, end);
			MPI_Barrier(MPI_COMM_WORLD);
			double start = MPI_Wtime();
			if (rank == 0) {
				MPI_Send(out, 1, types[which], 1, 0, MPI_COMM_WORLD);
				MPI_Recv(in, 1, types[which], 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
			} else if (rank == 1) {
				MPI_Recv(in, 1, types[which], 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
				MPI_Send(out, 1, types[which], 0, 0, MPI_COMM_WORLD);
			}
			if (round >= 0)
				times[round] = (MPI_Wtime() - start) / 2 * 1e3;
			MPI_Aint at = 0;
			for (int i = 0; i < pieces; i++) {
				for (; at < places[2 * i]; at++)
					wrong += in[at] != 0x5a;
				for (; at < places[2 * i] + PIECE; at++)
					wrong += in[at] != value(at, round, 1 - rank);
			}
		}
		long all;
		MPI_Reduce(&wrong, &all, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
		qsort(times, rounds, sizeof(double), ascending);
		if (rank == 0)
			printf("%s %d pieces: median %.3f ms, lowest %.3f ms, highest %.3f ms, wrong %ld\n",
			       which ? "struct" : "hindexed", pieces, times[rounds / 2], times[0],
			       times[rounds - 1], all);
		MPI_Type_free(&types[which]);
	}
	MPI_Finalize();
	return 0;
}
