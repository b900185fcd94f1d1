/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * What programs of `scripts/bench mpi` have in common beside mpi_paired.h.
 */
#ifndef MPI_BENCH_H
#define MPI_BENCH_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

static int rank, size;

static void die(const char *what)
{
	fprintf(stderr, "%s: rank %d: %s: %s\n", program_invocation_short_name, rank, what,
		strerror(errno));
	MPI_Abort(MPI_COMM_WORLD, 1);
	exit(1);
}

/*
 * Zeroed memory that starts an odd number of pages after a 2 MiB boundary, another one for each
 * `which` of each rank, so that nobody is better off by alignment.
 */
static inline void *memory(size_t length, int which)
{
	const size_t huge = 2u << 20, page = 4096;
	size_t skew = (2 * (8 * (size_t)rank + (size_t)which) + 1) * page;
	unsigned char *map = mmap(NULL, length + skew + huge, PROT_READ | PROT_WRITE,
				  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (map == MAP_FAILED)
		die("mmap of a buffer");
	return (unsigned char *)(((uintptr_t)map + huge - 1) & ~(uintptr_t)(huge - 1)) + skew;
}

static double microseconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

#endif
