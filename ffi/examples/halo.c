// SPDX-License-Identifier: MIT OR Apache-2.0

/* An MPI program that knows nothing of libcopy: each rank sends a column of its matrix to the next
 * one, then all get a row of one of them. docs/tutorial.md runs it. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROWS = 4000, COLUMNS = 1000, STEPS = 400 };

int main(int argc, char **argv)
{
	int rank, size;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);

	double *matrix = malloc(sizeof(double) * ROWS * COLUMNS);
	if (!matrix)
		MPI_Abort(MPI_COMM_WORLD, 1);
	for (long i = 0; i < (long)ROWS * COLUMNS; i++)
		matrix[i] = rank;

	/* One number of each row. */
	MPI_Datatype column;
	MPI_Type_vector(ROWS, 1, COLUMNS, MPI_DOUBLE, &column);
	MPI_Type_commit(&column);

	int next = (rank + 1) % size, before = (rank + size - 1) % size;
	for (int step = 0; step < STEPS; step++) {
		/* The last column but one of the rank before becomes the first column. */
		MPI_Sendrecv(matrix + COLUMNS - 2, 1, column, next, 0, matrix, 1, column, before, 0,
			     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		/* 100 rows of one rank become everybody's. */
		MPI_Bcast(matrix + COLUMNS, 100 * COLUMNS, MPI_DOUBLE, step % size, MPI_COMM_WORLD);
	}

	double sum = 0;
	for (long i = 0; i < (long)ROWS * COLUMNS; i++)
		sum += matrix[i];
	double all = 0;
	MPI_Reduce(&sum, &all, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
	if (rank == 0)
		printf("the sum of all matrices is %.1f\n", all);

	MPI_Type_free(&column);
	free(matrix);
	MPI_Finalize();
	return 0;
}
