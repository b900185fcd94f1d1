// SPDX-License-Identifier: MIT OR Apache-2.0

/*
 * Packs and unpacks the same elements again and again, and checks all bytes each time.
 *
 *   governed_packing CALLS
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCKS = 4000, MOST = 3 };

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	int calls = argc > 1 ? atoi(argv[1]) : 100, lengths[BLOCKS], places[BLOCKS], end = 0;
	for (int i = 0; i < BLOCKS; i++) {
		lengths[i] = 1 + rand() % MOST;
		places[i] = end + rand() % 3;
		end = places[i] + lengths[i];
	}
	MPI_Datatype type;
	MPI_Type_indexed(BLOCKS, lengths, places, MPI_INT, &type);
	MPI_Type_commit(&type);
	int bytes, wrong = 0;
	MPI_Type_size(type, &bytes);
	int *from = malloc(end * sizeof(int)), *to = malloc(end * sizeof(int));
	char *packed = malloc(bytes), *expected = malloc(bytes), *at = expected;
	for (int i = 0; i < end; i++)
		from[i] = i;
	for (int i = 0; i < BLOCKS; i++) {
		memcpy(at, from + places[i], lengths[i] * sizeof(int));
		at += lengths[i] * sizeof(int);
	}
	for (int call = 0; call < calls; call++) {
		int position = 0;
		memset(packed, 255, bytes);
		MPI_Pack(from, 1, type, packed, bytes, &position, MPI_COMM_WORLD);
		wrong += position != bytes || memcmp(packed, expected, bytes);
		position = 0;
		memset(to, 255, end * sizeof(int));
		MPI_Unpack(packed, bytes, &position, to, 1, type, MPI_COMM_WORLD);
		wrong += position != bytes;
		for (int i = 0; i < BLOCKS; i++)
			wrong += memcmp(to + places[i], from + places[i], lengths[i] * sizeof(int)) != 0;
	}
	printf("%d wrong\n", wrong);
	MPI_Type_free(&type);
	free(from), free(to), free(packed), free(expected);
	MPI_Finalize();
	return wrong != 0;
}
