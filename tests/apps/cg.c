// SPDX-License-Identifier: MIT OR Apache-2.0

/*
 * Conjugate gradients, the control of scripts/apps: Poisson's equation on N x N points, in strips
 * of rows. Each iteration has two allreduces of one number and a halo of one row to each side, and
 * nothing else in MPI: with few points it takes as long as those take. SYSTEMS right-hand sides are
 * solved one after the other, each made from a solution that is known, and what comes out is
 * compared with that.
 *
 * usage: cg N SYSTEMS
 */
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of the first residual; what is compared with the known solution may be off by ERROR. */
#define TOLERANCE 1e-12
#define ERROR 1e-8

static long n, first, rows;
static int up = MPI_PROC_NULL, down = MPI_PROC_NULL;

/* A vector has a row of its neighbours above and below its own, zero at the edge of the square. */
static double *vector(void)
{
	double *v = calloc((size_t)(rows + 2) * n, sizeof *v);

	if (!v)
		MPI_Abort(MPI_COMM_WORLD, 1);
	return v;
}

static double dot(const double *a, const double *b)
{
	double mine = 0, all;

	for (long i = n; i < (rows + 1) * n; i++)
		mine += a[i] * b[i];
	MPI_Allreduce(&mine, &all, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
	return all;
}

/* out = A in, the five-point stencil. */
static void multiply(double *in, double *out)
{
	MPI_Sendrecv(in + n, (int)n, MPI_DOUBLE, up, 1, in + (rows + 1) * n, (int)n, MPI_DOUBLE, down, 1,
		     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	MPI_Sendrecv(in + rows * n, (int)n, MPI_DOUBLE, down, 2, in, (int)n, MPI_DOUBLE, up, 2, MPI_COMM_WORLD,
		     MPI_STATUS_IGNORE);
	for (long row = 1; row <= rows; row++)
		for (long column = 0; column < n; column++) {
			const double *at = in + row * n + column;

			out[row * n + column] = 4 * at[0] - at[-n] - at[n] - (column ? at[-1] : 0) -
						(column < n - 1 ? at[1] : 0);
		}
}

/* Solves A x = b, from x = 0; the iterations that this took. */
static long solve(const double *b, double *x, double *r, double *p, double *q)
{
	double old, least;
	long iterations = 0;

	memset(x, 0, (size_t)(rows + 2) * n * sizeof *x);
	memcpy(r, b, (size_t)(rows + 2) * n * sizeof *r);
	memcpy(p, r, (size_t)(rows + 2) * n * sizeof *p);
	old = dot(r, r);
	least = old * TOLERANCE * TOLERANCE;
	while (old > least && iterations < 20 * n) {
		double alpha, now;

		multiply(p, q);
		alpha = old / dot(p, q);
		for (long i = n; i < (rows + 1) * n; i++) {
			x[i] += alpha * p[i];
			r[i] -= alpha * q[i];
		}
		now = dot(r, r);
		for (long i = n; i < (rows + 1) * n; i++)
			p[i] = r[i] + now / old * p[i];
		old = now;
		iterations++;
	}
	return iterations;
}

int main(int argc, char **argv)
{
	int rank, size, systems = argc == 3 ? atoi(argv[2]) : 0;
	double *b, *x, *r, *p, *q, *known, worst = 0, sum = 0, all, most;
	long iterations = 0;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	n = argc == 3 ? atol(argv[1]) : 0;
	if (n < size || systems < 1) {
		if (!rank)
			fprintf(stderr, "usage: cg N SYSTEMS, with at least a row for each rank\n");
		MPI_Abort(MPI_COMM_WORLD, 2);
	}
	first = rank * n / size;
	rows = (rank + 1) * n / size - first;
	if (rank)
		up = rank - 1;
	if (rank < size - 1)
		down = rank + 1;
	b = vector(), x = vector(), r = vector(), p = vector(), q = vector(), known = vector();
	for (int system = 0; system < systems; system++) {
		for (long i = 0; i < rows * n; i++)
			known[n + i] = (double)((first * n + i) * 7919 % 10007 + system) / 10007;
		multiply(known, b);
		iterations += solve(b, x, r, p, q);
		for (long i = n; i < (rows + 1) * n; i++) {
			worst = fmax(worst, fabs(x[i] - known[i]));
			sum += x[i] * (double)((first * n + i) % 1009 + 1);
		}
	}
	MPI_Reduce(&sum, &all, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
	MPI_Allreduce(&worst, &most, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
	if (!(most < ERROR)) {
		if (!rank)
			fprintf(stderr, "cg: wrong by %g\n", most);
		MPI_Abort(MPI_COMM_WORLD, 1);
	}
	/*
	 * The last digits, and now and then the last iteration, depend on the order of additions:
	 * only the second line has to be the same.
	 */
	if (!rank) {
		printf("iterations %ld\n", iterations);
		printf("solved %d systems, weighted sum %.5e\n", systems, all);
	}
	free(b), free(x), free(r), free(p), free(q), free(known);
	MPI_Finalize();
	return 0;
}
