// SPDX-License-Identifier: MIT OR Apache-2.0

/* A broadcast of more bytes than an `int` counts, and parts that are further from each other. The
 * memory is a small file that is mapped again and again, with another one at the end.
 *
 * usage: large, with two ranks
 */
#define _GNU_SOURCE
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define WINDOW ((size_t)4 << 20)
#define LENGTH (((size_t)1 << 31) + 12345)

static unsigned char *reserve(size_t length)
{
	size_t rounded = (length + WINDOW - 1) / WINDOW * WINDOW;
	unsigned char *all = mmap(NULL, rounded, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
				  -1, 0);
	int body = memfd_create("body", 0), end = memfd_create("end", 0);
	if (all == MAP_FAILED || ftruncate(body, WINDOW) || ftruncate(end, WINDOW))
		MPI_Abort(MPI_COMM_WORLD, 2);
	for (size_t at = 0; at < rounded; at += WINDOW)
		if (mmap(all + at, WINDOW, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
			 at + WINDOW < rounded ? body : end, 0) == MAP_FAILED)
			MPI_Abort(MPI_COMM_WORLD, 2);
	return all;
}

/* What byte `i` is: the same in every mapping of the file. */
static unsigned char expected(size_t i)
{
	size_t last = LENGTH / WINDOW * WINDOW;
	return i < last ? (i % WINDOW) * 2654435761u >> 24 : 255 - (i - last) % 251;
}

int main(int argc, char **argv)
{
	int rank;
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	unsigned char *all = reserve(LENGTH);
	const size_t starts[] = { 0, LENGTH / WINDOW * WINDOW }, lengths[] = { WINDOW, 12345 };
	for (int part = 0; part < 2; part++)
		for (size_t i = 0; rank == 0 && i < lengths[part]; i++)
			all[starts[part] + i] = expected(starts[part] + i);
	int code = MPI_Bcast_c(all, LENGTH, MPI_BYTE, 0, MPI_COMM_WORLD);
	int wrong = 0;
	for (int part = 0; part < 2; part++)
		for (size_t i = 0; i < lengths[part]; i++)
			wrong += all[starts[part] + i] != expected(starts[part] + i);
	/* Nobody writes behind the end. */
	wrong += all[LENGTH] != 0;
	printf("rank %d: bcast: code %d, %d wrong\n", rank, code, wrong);

	/* The second part comes to where no `int` reaches. */
	MPI_Count each = 1 << 20, counts[] = { each, each };
	MPI_Aint places[] = { 0, LENGTH - each };
	unsigned char *own = malloc(each);
	memset(own, 17 + rank, each);
	code = MPI_Allgatherv_c(own, each, MPI_BYTE, all, counts, places, MPI_BYTE, MPI_COMM_WORLD);
	wrong = 0;
	for (int part = 0; part < 2; part++)
		for (MPI_Count i = 0; i < each; i++)
			wrong += all[places[part] + i] != 17 + part;
	printf("rank %d: allgatherv: code %d, %d wrong\n", rank, code, wrong);
	MPI_Finalize();
	return 0;
}
