// SPDX-License-Identifier: MIT OR Apache-2.0

/*
 * A 7-point stencil on N^3 doubles whose faces are exchanged as subarrays (figure 12 of the paper
 * on FALCON-X), not periodic.
 *
 * usage: mpi_stencil N [MILLISECONDS [DIMS]]
 *
 * DIMS is how the cube is cut, for instance 2x1x1: the number of parts along the slowest index
 * first; it must make the number of ranks, and its numbers must divide N. MPI_Dims_create says
 * otherwise. Printed are stencil-exchange, the six faces there and back, and stencil-step, the same
 * with the computation; the column for bytes has what a rank receives on average.
 */
#include "mpi_bench.h"
#include "mpi_paired.h"

static int dims[3], place[3], neighbour[3][2];
/* Cells of this rank along each index, without the halo. */
static size_t mine[3];
static double *now_values, *next_values;
static MPI_Datatype outgoing[3][2], incoming[3][2];
static MPI_Comm grid;

static size_t cell(size_t i, size_t j, size_t k)
{
	return (i * (mine[1] + 2) + j) * (mine[2] + 2) + k;
}

/* The value of a cell at the beginning, by its place in the whole cube. */
static double value(const long at[3], int round)
{
	return (double)((at[0] * 7919 + at[1] * 104729 + at[2] * 1299709 + round * 15485863) % 2097143);
}

static void create_faces(void)
{
	int sizes[3], subsizes[3], starts[3];

	for (int d = 0; d < 3; d++)
		for (int side = 0; side < 2; side++) {
			for (int e = 0; e < 3; e++) {
				sizes[e] = (int)mine[e] + 2;
				subsizes[e] = e == d ? 1 : (int)mine[e];
				starts[e] = 1;
			}
			starts[d] = side ? (int)mine[d] : 1;
			MPI_Type_create_subarray(3, sizes, subsizes, starts, MPI_ORDER_C,
						 MPI_DOUBLE, &outgoing[d][side]);
			starts[d] = side ? (int)mine[d] + 1 : 0;
			MPI_Type_create_subarray(3, sizes, subsizes, starts, MPI_ORDER_C,
						 MPI_DOUBLE, &incoming[d][side]);
			MPI_Type_commit(&outgoing[d][side]);
			MPI_Type_commit(&incoming[d][side]);
		}
}

static void exchange(double *values)
{
	MPI_Request requests[12];
	MPI_Status statuses[12];
	int n = 0;

	for (int d = 0; d < 3; d++)
		for (int side = 0; side < 2; side++)
			CALL(Irecv, values, 1, incoming[d][side], neighbour[d][side],
				  2 * d + !side, grid, &requests[n++]);
	for (int d = 0; d < 3; d++)
		for (int side = 0; side < 2; side++)
			CALL(Isend, values, 1, outgoing[d][side], neighbour[d][side], 2 * d + side,
				  grid, &requests[n++]);
	CALL(Waitall, n, requests, statuses);
}

static void compute(const double *restrict u, double *restrict v)
{
	const size_t row = mine[2] + 2, plane = (mine[1] + 2) * row;

	for (size_t i = 1; i <= mine[0]; i++)
		for (size_t j = 1; j <= mine[1]; j++) {
			const double *restrict a = u + cell(i, j, 0);
			double *restrict b = v + cell(i, j, 0);

			for (size_t k = 1; k <= mine[2]; k++)
				b[k] = (a[k] + a[k - 1] + a[k + 1] + a[k - row] + a[k + row] +
					a[k - plane] + a[k + plane]) *
				       (1.0 / 7);
		}
}

static void step(void)
{
	double *swap = now_values;

	exchange(now_values);
	compute(now_values, next_values);
	now_values = next_values;
	next_values = swap;
}

/* What has to be in a cell after the exchange; -1 in what nobody sends. */
static double expected(const size_t at[3], int round)
{
	long global[3];
	int outside = 0, sent = 1;

	for (int d = 0; d < 3; d++) {
		int side = at[d] > mine[d];

		if (at[d] == 0 || at[d] > mine[d]) {
			outside++;
			sent &= neighbour[d][side] != MPI_PROC_NULL;
		}
		global[d] = (long)(at[d] + (size_t)place[d] * mine[d]) - 1;
	}
	return outside > 1 || !sent ? -1 : value(global, round);
}

/* Fills the cube, exchanges, and looks at every cell with the halo. */
static int check(int round)
{
	int right = 1;
	size_t at[3];

	for (at[0] = 0; at[0] < mine[0] + 2; at[0]++)
		for (at[1] = 0; at[1] < mine[1] + 2; at[1]++)
			for (at[2] = 0; at[2] < mine[2] + 2; at[2]++) {
				int inside = 1;

				for (int d = 0; d < 3; d++)
					inside &= at[d] > 0 && at[d] <= mine[d];
				now_values[cell(at[0], at[1], at[2])] =
					inside ? expected(at, round) : -1;
			}
	intercepted = 1;
	exchange(now_values);
	intercepted = 0;
	for (at[0] = 0; at[0] < mine[0] + 2; at[0]++)
		for (at[1] = 0; at[1] < mine[1] + 2; at[1]++)
			for (at[2] = 0; at[2] < mine[2] + 2; at[2]++)
				right &= now_values[cell(at[0], at[1], at[2])] ==
					 expected(at, round);
	return right;
}

static void exchange_now(void)
{
	exchange(now_values);
}

static double timed_exchange(int calls)
{
	return paired_each(exchange_now, calls);
}

static double timed_step(int calls)
{
	return paired_each(step, calls);
}

static void measure(const char *op, double (*once)(int calls), double budget, int right)
{
	double faces = 0, all;
	char rest[64];

	for (int d = 0; d < 3; d++)
		for (int side = 0; side < 2; side++)
			if (neighbour[d][side] != MPI_PROC_NULL)
				faces += 8.0 * (double)(mine[0] * mine[1] * mine[2] / mine[d]);
	MPI_Allreduce(&faces, &all, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
	snprintf(rest, sizeof(rest), ",%dx%dx%d", dims[0], dims[1], dims[2]);
	paired(op, (size_t)(all / size), once, budget, 1, right, rest);
}

int main(int argc, char **argv)
{
	const int periods[3] = { 0, 0, 0 };
	double budget = argc > 2 ? atof(argv[2]) : 1000;
	size_t cells = 1;
	int n, right, after;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	n = argc > 1 ? atoi(argv[1]) : 0;
	if (argc > 3)
		sscanf(argv[3], "%dx%dx%d", dims, dims + 1, dims + 2);
	else
		MPI_Dims_create(size, 3, dims);
	if (n < 1 || dims[0] < 1 || dims[1] < 1 || dims[2] < 1 || dims[0] * dims[1] * dims[2] != size ||
	    n % dims[0] || n % dims[1] || n % dims[2]) {
		if (!rank)
			fprintf(stderr,
				"usage: mpirun -n RANKS mpi_stencil N [MILLISECONDS [AxBxC]]\n"
				"AxBxC makes RANKS, and each of them divides N; not so N = %d and %dx%dx%d\n",
				n, dims[0], dims[1], dims[2]);
		MPI_Abort(MPI_COMM_WORLD, 2);
	}
	MPI_Cart_create(MPI_COMM_WORLD, 3, dims, periods, 0, &grid);
	MPI_Cart_coords(grid, rank, 3, place);
	for (int d = 0; d < 3; d++) {
		mine[d] = (size_t)(n / dims[d]);
		cells *= mine[d] + 2;
		MPI_Cart_shift(grid, d, 1, &neighbour[d][0], &neighbour[d][1]);
	}
	now_values = memory(8 * cells, 0);
	next_values = memory(8 * cells, 1);
	create_faces();
	right = check(1);
	/* The other array's pages are there before anything is timed. */
	memset(next_values, 0, 8 * cells);
	measure("stencil-exchange", timed_exchange, budget, right);
	after = right & check(2);
	measure("stencil-step", timed_step, budget, after & check(3));
	for (int d = 0; d < 3; d++)
		for (int side = 0; side < 2; side++) {
			MPI_Type_free(&outgoing[d][side]);
			MPI_Type_free(&incoming[d][side]);
		}
	MPI_Comm_free(&grid);
	MPI_Finalize();
	return 0;
}
