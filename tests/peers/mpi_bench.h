/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * What the programs of `scripts/bench mpi` that measure on their own have in common: they print one
 * line op,bytes,ranks,,median,p10,p90,verified[,layout[,block]] for each case, of which the script
 * fills in who it was.
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

enum { MOST_TIMES = 512 };

static int rank, size;

static void die(const char *what)
{
	fprintf(stderr, "%s: rank %d: %s: %s\n", program_invocation_short_name, rank, what,
		strerror(errno));
	MPI_Abort(MPI_COMM_WORLD, 1);
	exit(1);
}

/*
 * Zeroed memory that starts an odd number of pages after a 2 MiB boundary, another one for each `which`
 * of each rank, so that nobody is better off by alignment.
 */
static void *memory(size_t length, int which)
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

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* How many calls of `one` microseconds, as rank 0 took it, make up a budget in milliseconds. */
static int fitting(double budget, double one, int least, int most)
{
	double n = budget * 1e3 / (one > 0.01 ? one : 0.01);
	int calls = n > most ? most : n < least ? least : (int)n;

	MPI_Bcast(&calls, 1, MPI_INT, 0, MPI_COMM_WORLD);
	return calls;
}

/* Whether it is so on all ranks. */
static int everywhere(int mine)
{
	int all;

	MPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_LAND, MPI_COMM_WORLD);
	return all;
}

/*
 * Prints a case; each of the times is averaged over the ranks. `rest` is what follows `verified`, with
 * its comma.
 */
static void report(const char *op, size_t bytes, double *times, int count, int verified,
		   const char *rest)
{
	double average[MOST_TIMES];

	if (count > MOST_TIMES) {
		errno = E2BIG;
		die("more times than room");
	}
	verified = everywhere(verified);
	MPI_Reduce(times, average, count, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
	for (int i = 0; i < count; i++)
		average[i] /= size;
	qsort(average, (size_t)count, sizeof(*average), ascending);
	if (!rank) {
		printf("%s,%zu,%d,,%.3f,%.3f,%.3f,%s%s\n", op, bytes, size, average[count / 2],
		       average[count / 10], average[count * 9 / 10], verified ? "yes" : "no", rest);
		fflush(stdout);
	}
}

#endif
