// SPDX-License-Identifier: MIT OR Apache-2.0

/* MPI_Alltoallw and MPI_Alltoallv within one array: columns that are sent lie beside columns that
 * are received, so that both buffers have one address, and equal lengths and places, but other
 * types. Then one of the two ranks gives the elements at MPI_BOTTOM, which the MPI library packs.
 * Prints how many elements were wrong. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROWS = 16384, COLUMNS = 8, ROUNDS = 20 };

static double *array;
static int rank, wrong;

static double number(int who, int row, int column, int round)
{
	return who * 1e7 + round * 1e6 + row * COLUMNS + column;
}

/* Columns 0 and 1 for rank 0, 2 and 3 for rank 1; what comes from them goes to 4 and 5, 6 and 7. */
static void begin(int round)
{
	for (int i = 0; i < ROWS; i++)
		for (int j = 0; j < COLUMNS; j++)
			array[i * COLUMNS + j] = j < 4 ? number(rank, i, j, round) : -1;
}

static void check(int round)
{
	for (int i = 0; i < ROWS; i++)
		for (int j = 0; j < COLUMNS; j++) {
			const double expected =
				j < 4 ? number(rank, i, j, round) : number((j - 4) / 2, i, 2 * rank + j % 2, round);
			wrong += array[i * COLUMNS + j] != expected;
		}
}

static MPI_Datatype columns(int first)
{
	MPI_Datatype type;
	MPI_Type_create_subarray(2, (int[]){ ROWS, COLUMNS }, (int[]){ ROWS, 2 }, (int[]){ 0, first }, MPI_ORDER_C,
				 MPI_DOUBLE, &type);
	MPI_Type_commit(&type);
	return type;
}

/* Two columns from a place on, the next element two columns further. */
static MPI_Datatype two(int first)
{
	MPI_Datatype rows, placed, resized;
	MPI_Type_vector(ROWS, 2, COLUMNS, MPI_DOUBLE, &rows);
	MPI_Type_create_hindexed(1, (int[]){ 1 }, (MPI_Aint[]){ first * (MPI_Aint)sizeof(double) }, rows, &placed);
	MPI_Type_create_resized(placed, 0, 2 * sizeof(double), &resized);
	MPI_Type_commit(&resized);
	MPI_Type_free(&rows);
	MPI_Type_free(&placed);
	return resized;
}

/* The same columns at MPI_BOTTOM. */
static MPI_Datatype absolute(MPI_Datatype type)
{
	MPI_Aint address;
	MPI_Datatype at;
	MPI_Get_address(array, &address);
	MPI_Type_create_hindexed(1, (int[]){ 1 }, &address, type, &at);
	MPI_Type_commit(&at);
	return at;
}

int main(int argc, char **argv)
{
	const int ones[2] = { 1, 1 }, received_ones[2] = { 1, 1 }, zeros[2] = { 0, 0 }, places[2] = { 0, 1 };
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	array = malloc(ROWS * COLUMNS * sizeof(double));
	MPI_Datatype sent[2] = { columns(0), columns(2) }, received[2] = { columns(4), columns(6) };
	MPI_Datatype sent_two = two(0), received_two = two(4);
	MPI_Datatype sent_at[2], received_at[2];
	for (int i = 0; i < 2; i++) {
		sent_at[i] = absolute(sent[i]);
		received_at[i] = absolute(received[i]);
	}
	for (int round = 0; round < ROUNDS; round++) {
		begin(round);
		MPI_Alltoallw(array, ones, zeros, sent, array, received_ones, zeros, received, MPI_COMM_WORLD);
		check(round);
		begin(round);
		MPI_Alltoallv(array, ones, places, sent_two, array, received_ones, places, received_two,
			      MPI_COMM_WORLD);
		check(round);
		begin(round);
		if (rank == 0)
			MPI_Alltoallw(MPI_BOTTOM, ones, zeros, sent_at, MPI_BOTTOM, received_ones, zeros, received_at,
				      MPI_COMM_WORLD);
		else
			MPI_Alltoallw(array, ones, zeros, sent, array, received_ones, zeros, received,
				      MPI_COMM_WORLD);
		check(round);
	}
	MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
	if (rank == 0)
		printf("%d wrong\n", wrong);
	for (int i = 0; i < 2; i++) {
		MPI_Type_free(&sent[i]);
		MPI_Type_free(&received[i]);
		MPI_Type_free(&sent_at[i]);
		MPI_Type_free(&received_at[i]);
	}
	MPI_Type_free(&sent_two);
	MPI_Type_free(&received_two);
	free(array);
	MPI_Finalize();
	return 0;
}
