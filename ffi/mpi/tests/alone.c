// SPDX-License-Identifier: MIT OR Apache-2.0

/* MPI_Alltoallw of each rank with itself: matrices that are transposed, parts of arrays, and
 * lengths that differ. Prints how many were wrong, and the class of the error. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 256, ROUNDS = 40 };

static double *from, *to;

/* An N x N matrix by columns, or the middle of one that is twice as wide. */
static MPI_Datatype columns(void)
{
	MPI_Datatype column, wide, matrix;
	MPI_Type_vector(N, 1, N, MPI_DOUBLE, &column);
	MPI_Type_create_resized(column, 0, sizeof(double), &wide);
	MPI_Type_contiguous(N, wide, &matrix);
	MPI_Type_commit(&matrix);
	MPI_Type_free(&column);
	MPI_Type_free(&wide);
	return matrix;
}

static MPI_Datatype middle(void)
{
	MPI_Datatype type;
	MPI_Type_create_subarray(2, (int[]){ N, 2 * N }, (int[]){ N, N }, (int[]){ 0, N / 2 }, MPI_ORDER_C, MPI_DOUBLE,
				 &type);
	MPI_Type_commit(&type);
	return type;
}

static int exchange(MPI_Datatype sent, int sent_count, MPI_Datatype received)
{
	const int one = 1, zero = 0;
	return MPI_Alltoallw(from, &sent_count, &zero, &sent, to, &one, &zero, &received, MPI_COMM_SELF);
}

int main(int argc, char **argv)
{
	int rank, wrong = 0, class;
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	from = malloc(2 * N * N * sizeof(double));
	to = malloc(2 * N * N * sizeof(double));
	MPI_Datatype by_columns = columns(), inner = middle();
	for (int round = 0; round < ROUNDS; round++) {
		for (int i = 0; i < 2 * N * N; i++) {
			from[i] = i + round + rank;
			to[i] = -1;
		}
		if (round % 2)
			exchange(by_columns, 1, inner);
		else
			exchange(inner, 1, by_columns);
		for (int i = 0; i < N; i++)
			for (int j = 0; j < 2 * N; j++) {
				const int inside = j >= N / 2 && j < N / 2 + N, k = j - N / 2;
				if (round % 2)
					wrong += to[i * 2 * N + j] != (inside ? k * N + i + round + rank : -1);
				else if (inside)
					wrong += to[k * N + i] != i * 2 * N + j + round + rank;
			}
	}
	MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
	const int code = exchange(MPI_DOUBLE, N * N + 1, by_columns);
	MPI_Error_class(code, &class);
	const int truncated = class == MPI_ERR_TRUNCATE;
	MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
	if (rank == 0)
		printf("%d wrong, %s\n", wrong, truncated ? "truncated" : code ? "another error" : "no error");
	MPI_Type_free(&by_columns);
	MPI_Type_free(&inner);
	free(from);
	free(to);
	MPI_Finalize();
	return 0;
}
