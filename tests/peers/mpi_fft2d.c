// SPDX-License-Identifier: MIT OR Apache-2.0

/*
 * A Fourier transform of N x N complex numbers whose rows are dealt out: rows are transformed, the
 * matrix is transposed by one MPI_Alltoallw with derived types, rows are transformed again, and it
 * is transposed back.
 *
 * usage: mpi_fft2d N [MILLISECONDS]
 *
 * N is a power of two that the number of ranks divides. Printed are fft2d-transpose, one
 * MPI_Alltoallw, and fft2d, the whole transform; the column for bytes has what a rank holds.
 */
#include "mpi_bench.h"
#include "mpi_paired.h"

#include <complex.h>
#include <math.h>

static size_t n, rows;
static double complex *a, *b, *roots;
static MPI_Datatype *columns, *blocks;
static int *ones, *from_places, *to_places;

/*
 * What goes to a rank: the rows of the result that it holds, which are columns here, one after the
 * other. What comes from one: as many columns of all rows as it has rows.
 */
static void create_types(void)
{
	MPI_Datatype column, narrow, transposed, block;

	MPI_Type_vector((int)rows, 1, (int)n, MPI_C_DOUBLE_COMPLEX, &column);
	MPI_Type_create_resized(column, 0, sizeof(*a), &narrow);
	MPI_Type_contiguous((int)rows, narrow, &transposed);
	MPI_Type_commit(&transposed);
	MPI_Type_vector((int)rows, (int)rows, (int)n, MPI_C_DOUBLE_COMPLEX, &block);
	MPI_Type_commit(&block);
	MPI_Type_free(&column);
	MPI_Type_free(&narrow);
	columns = calloc((size_t)size, sizeof(MPI_Datatype));
	blocks = calloc((size_t)size, sizeof(MPI_Datatype));
	ones = calloc((size_t)size, sizeof(int));
	from_places = calloc((size_t)size, sizeof(int));
	to_places = calloc((size_t)size, sizeof(int));
	if (!columns || !blocks || !ones || !from_places || !to_places)
		die("calloc");
	for (int i = 0; i < size; i++) {
		columns[i] = transposed;
		blocks[i] = block;
		ones[i] = 1;
		from_places[i] = to_places[i] = (int)((size_t)i * rows * sizeof(*a));
	}
}

static void transpose(double complex *from, double complex *to)
{
	CALL(Alltoallw, from, ones, from_places, columns, to, ones, to_places, blocks, MPI_COMM_WORLD);
}

/* The transform of one row, in place. */
static void transform(double complex *x)
{
	for (size_t i = 1, j = 0; i < n; i++) {
		size_t bit = n >> 1;

		for (; j & bit; bit >>= 1)
			j ^= bit;
		j ^= bit;
		if (i < j) {
			double complex swap = x[i];

			x[i] = x[j];
			x[j] = swap;
		}
	}
	for (size_t length = 2; length <= n; length *= 2)
		for (size_t i = 0; i < n; i += length)
			for (size_t k = 0; k < length / 2; k++) {
				double complex u = x[i + k];
				double complex v = x[i + k + length / 2] * roots[k * (n / length)];

				x[i + k] = u + v;
				x[i + k + length / 2] = u - v;
			}
}

static void whole(void)
{
	for (size_t i = 0; i < rows; i++)
		transform(a + i * n);
	transpose(a, b);
	for (size_t i = 0; i < rows; i++)
		transform(b + i * n);
	transpose(b, a);
}

/* Whether every number gets where it belongs. */
static int check_transpose(void)
{
	size_t first = (size_t)rank * rows;
	int right = 1;

	for (size_t i = 0; i < rows; i++)
		for (size_t j = 0; j < n; j++) {
			a[i * n + j] = (double)(first + i) + (double)j * I;
			b[i * n + j] = -1;
		}
	intercepted = 1;
	transpose(a, b);
	intercepted = 0;
	for (size_t i = 0; i < rows; i++)
		for (size_t j = 0; j < n; j++)
			right &= b[i * n + j] == (double)j + (double)(first + i) * I;
	return right;
}

/* Whether a wave becomes the one number that stands for it. */
static int check_whole(void)
{
	const size_t p = 3 % n, q = 5 % n;
	size_t first = (size_t)rank * rows;
	int right = 1;

	for (size_t i = 0; i < rows; i++)
		for (size_t j = 0; j < n; j++)
			a[i * n + j] = cexp(2 * M_PI * I *
					    (double)((p * (first + i) + q * j) % n) / (double)n);
	intercepted = 1;
	whole();
	intercepted = 0;
	for (size_t i = 0; i < rows; i++)
		for (size_t j = 0; j < n; j++) {
			double wanted = first + i == p && j == q ? (double)n * (double)n : 0;

			right &= cabs(a[i * n + j] - wanted) < 1e-9 * (double)n * (double)n;
		}
	return right;
}

/* Numbers that are transformed over and over grow without end. */
static void whole_of_zeros(void)
{
	memset(a, 0, rows * n * sizeof(*a));
	whole();
}

static void transpose_once(void)
{
	transpose(a, b);
}

static double timed_transpose(int calls)
{
	return paired_each(transpose_once, calls);
}

static double timed_whole(int calls)
{
	return paired_each(whole_of_zeros, calls);
}

static void measure(const char *op, double (*once)(int calls), double budget, int right)
{
	char rest[64];

	snprintf(rest, sizeof(rest), ",%zux%zu", n, n);
	paired(op, rows * n * sizeof(*a), once, budget, 1, right, rest);
}

int main(int argc, char **argv)
{
	double budget = argc > 2 ? atof(argv[2]) : 500;
	int right;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	n = argc > 1 ? strtoul(argv[1], NULL, 10) : 0;
	if (n < 2 || n & (n - 1) || n % (size_t)size) {
		if (!rank)
			fprintf(stderr,
				"usage: mpirun -n RANKS mpi_fft2d N [MILLISECONDS]\n"
				"N is a power of two that RANKS divides, not %zu\n",
				n);
		MPI_Abort(MPI_COMM_WORLD, 2);
	}
	rows = n / (size_t)size;
	a = memory(rows * n * sizeof(*a), 0);
	b = memory(rows * n * sizeof(*b), 1);
	roots = calloc(n / 2, sizeof(*roots));
	if (!roots)
		die("calloc");
	for (size_t i = 0; i < n / 2; i++)
		roots[i] = cexp(-2 * M_PI * I * (double)i / (double)n);
	create_types();
	right = check_transpose();
	measure("fft2d-transpose", timed_transpose, budget, right);
	right = check_whole();
	measure("fft2d", timed_whole, budget, right);
	MPI_Type_free(&columns[0]);
	MPI_Type_free(&blocks[0]);
	MPI_Finalize();
	return 0;
}
