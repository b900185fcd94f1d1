// SPDX-License-Identifier: MIT OR Apache-2.0

/*
 * Fourier transforms by FFTW-MPI, one of the applications of scripts/apps: N x N complex numbers
 * there and back, ROUNDS times. Prints sums that depend on every number.
 *
 * usage: fftw N ROUNDS
 */
#include <complex.h>
#include <fftw3-mpi.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
	ptrdiff_t n = argc > 2 ? atol(argv[1]) : 0, room, rows, first;
	int rounds = argc > 2 ? atoi(argv[2]) : 0, rank;
	double mine[2] = { 0, 0 }, all[2];
	fftw_complex *data;
	fftw_plan there, back;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	if (n < 2 || rounds < 1) {
		if (!rank)
			fprintf(stderr, "usage: fftw N ROUNDS\n");
		MPI_Abort(MPI_COMM_WORLD, 2);
	}
	fftw_mpi_init();
	room = fftw_mpi_local_size_2d(n, n, MPI_COMM_WORLD, &rows, &first);
	data = fftw_alloc_complex((size_t)room);
	if (!data)
		MPI_Abort(MPI_COMM_WORLD, 1);
	there = fftw_mpi_plan_dft_2d(n, n, data, data, MPI_COMM_WORLD, FFTW_FORWARD,
				     FFTW_ESTIMATE | FFTW_MPI_TRANSPOSED_OUT);
	back = fftw_mpi_plan_dft_2d(n, n, data, data, MPI_COMM_WORLD, FFTW_BACKWARD,
				    FFTW_ESTIMATE | FFTW_MPI_TRANSPOSED_IN);
	for (ptrdiff_t i = 0; i < rows * n; i++)
		data[i] = (double)((first * n + i) * 7919 % 104729) / 104729;
	for (int round = 0; round < rounds; round++) {
		fftw_execute(there);
		fftw_execute(back);
		for (ptrdiff_t i = 0; i < rows * n; i++)
			data[i] /= (double)(n * n);
	}
	for (ptrdiff_t i = 0; i < rows * n; i++) {
		mine[0] += creal(data[i]) * (double)((first * n + i) % 1009);
		mine[1] += cimag(data[i]) * (double)((first * n + i) % 1009);
	}
	MPI_Reduce(mine, all, 2, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
	if (!rank)
		printf("sums %.17g %.17g\n", all[0], all[1]);
	fftw_destroy_plan(there);
	fftw_destroy_plan(back);
	fftw_free(data);
	fftw_mpi_cleanup();
	MPI_Finalize();
	return 0;
}
