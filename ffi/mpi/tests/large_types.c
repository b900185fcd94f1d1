// SPDX-License-Identifier: MIT OR Apache-2.0

/* Types that are made by functions for large counts, of each constructor, and the same types made
 * with `int`s: a message of the one is received into the other, in both directions, and compared
 * with one that was made by hand.
 *
 * usage: large_types, with two ranks
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 40, CONSTRUCTORS = 11, BYTES = 1 << 20 };

/* Of 40 parts: 16 doubles each, at irregular places. */
static MPI_Count lengths_c[N], doubles_c[N], bytes_c[N];
static int lengths[N], doubles[N];
static MPI_Aint bytes[N];
static MPI_Datatype parts[N];

/* The type of a constructor, with large counts or without. */
static MPI_Datatype make(int constructor, int large)
{
	MPI_Datatype type, base;
	MPI_Count sizes_c[] = { 20, 24, 5 }, some_c[] = { 10, 12, 4 }, starts_c[] = { 3, 7, 1 };
	int sizes[] = { 20, 24, 5 }, some[] = { 10, 12, 4 }, starts[] = { 3, 7, 1 };
	int kinds[] = { MPI_DISTRIBUTE_BLOCK, MPI_DISTRIBUTE_CYCLIC, MPI_DISTRIBUTE_NONE };
	int arguments[] = { MPI_DISTRIBUTE_DFLT_DARG, 3, MPI_DISTRIBUTE_DFLT_DARG };
	int grid[] = { 2, 2, 1 };
	MPI_Type_vector(8, 2, 3, MPI_DOUBLE, &base);
	switch (constructor) {
	case 0:
		large ? MPI_Type_contiguous_c(N, base, &type) : MPI_Type_contiguous(N, base, &type);
		break;
	case 1:
		large ? MPI_Type_vector_c(N, 16, 20, MPI_DOUBLE, &type) :
			MPI_Type_vector(N, 16, 20, MPI_DOUBLE, &type);
		break;
	case 2:
		large ? MPI_Type_create_hvector_c(N, 2, 600, base, &type) :
			MPI_Type_create_hvector(N, 2, 600, base, &type);
		break;
	case 3:
		large ? MPI_Type_indexed_c(N, lengths_c, doubles_c, MPI_DOUBLE, &type) :
			MPI_Type_indexed(N, lengths, doubles, MPI_DOUBLE, &type);
		break;
	case 4:
		large ? MPI_Type_create_hindexed_c(N, lengths_c, bytes_c, MPI_DOUBLE, &type) :
			MPI_Type_create_hindexed(N, lengths, bytes, MPI_DOUBLE, &type);
		break;
	case 5:
		large ? MPI_Type_create_indexed_block_c(N, 16, doubles_c, MPI_DOUBLE, &type) :
			MPI_Type_create_indexed_block(N, 16, doubles, MPI_DOUBLE, &type);
		break;
	case 6:
		large ? MPI_Type_create_hindexed_block_c(N, 16, bytes_c, MPI_DOUBLE, &type) :
			MPI_Type_create_hindexed_block(N, 16, bytes, MPI_DOUBLE, &type);
		break;
	case 7:
		large ? MPI_Type_create_struct_c(N, lengths_c, bytes_c, parts, &type) :
			MPI_Type_create_struct(N, lengths, bytes, parts, &type);
		break;
	case 8:
		large ? MPI_Type_create_subarray_c(3, sizes_c, some_c, starts_c, MPI_ORDER_FORTRAN,
						   MPI_DOUBLE, &type) :
			MPI_Type_create_subarray(3, sizes, some, starts, MPI_ORDER_FORTRAN, MPI_DOUBLE,
						 &type);
		break;
	case 9:
		large ? MPI_Type_create_darray_c(4, 1, 3, sizes_c, kinds, arguments, grid, MPI_ORDER_C,
						 MPI_DOUBLE, &type) :
			MPI_Type_create_darray(4, 1, 3, sizes, kinds, arguments, grid, MPI_ORDER_C,
					       MPI_DOUBLE, &type);
		break;
	default: {
		MPI_Datatype vector;
		MPI_Type_vector(N, 16, 20, MPI_DOUBLE, &vector);
		large ? MPI_Type_create_resized_c(vector, -8, 8000, &type) :
			MPI_Type_create_resized(vector, -8, 8000, &type);
		MPI_Type_free(&vector);
	}
	}
	MPI_Type_free(&base);
	MPI_Type_commit(&type);
	return type;
}

int main(int argc, char **argv)
{
	int rank;
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	for (int i = 0; i < N; i++) {
		lengths[i] = lengths_c[i] = 1 + i % 16;
		doubles[i] = doubles_c[i] = 20 * i + i % 4;
		bytes[i] = bytes_c[i] = 8 * doubles[i];
		parts[i] = i % 2 ? MPI_DOUBLE : MPI_INT64_T;
	}
	/* Elements may begin before the address. */
	enum { BEFORE = 64 };
	unsigned char *sent = malloc(BYTES), *got = malloc(BYTES), *expected = malloc(BYTES);
	for (int constructor = 0; constructor < CONSTRUCTORS; constructor++) {
		int wrong = 0;
		for (int large = 0; large < 2; large++) {
			MPI_Datatype type = make(constructor, large), other = make(constructor, !large);
			for (int i = 0; i < BYTES; i++)
				sent[i] = (i * 2654435761u) >> 24;
			memset(got, 1, BYTES);
			memset(expected, 1, BYTES);
			int size, position = 0;
			MPI_Pack_size(3, other, MPI_COMM_WORLD, &size);
			void *packed = malloc(size);
			PMPI_Pack(sent + BEFORE, 3, other, packed, size, &position, MPI_COMM_WORLD);
			size = position;
			position = 0;
			PMPI_Unpack(packed, size, &position, expected + BEFORE, 3, other, MPI_COMM_WORLD);
			free(packed);
			if (rank == 0)
				MPI_Send(sent + BEFORE, 3, type, 1, constructor, MPI_COMM_WORLD);
			else
				MPI_Recv(got + BEFORE, 3, other, 0, constructor, MPI_COMM_WORLD,
					 MPI_STATUS_IGNORE);
			wrong += rank == 1 && memcmp(got, expected, BYTES) != 0;
			wrong += memcmp(got, sent, BYTES) == 0;
			MPI_Type_free(&type);
			MPI_Type_free(&other);
		}
		if (rank == 1)
			printf("constructor %d: %d wrong\n", constructor, wrong);
	}
	MPI_Finalize();
	free(sent);
	free(got);
	free(expected);
	return 0;
}
