/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * Compares calls that are intercepted (MPI_X, which libcopy_mpi.so has where it is preloaded) with
 * the same calls of the MPI library itself (PMPI_X, MPI 4.1, section 15.2) inside one launch: in
 * the same processes and buffers, in alternating blocks of milliseconds. From launch to launch the
 * same program may be several times as fast; two blocks that follow each other see the same
 * machine.
 *
 * A round is four blocks: plain, intercepted, intercepted, plain, or the other way round in every
 * other round. A case prints one line
 *
 *   OP,BYTES,RANKS,,ROUNDS,VERIFIED[,LAYOUT[,BLOCK]]
 *
 * whose empty column is for the name of the MPI library; ROUNDS are separated by ';', each with the
 * four blocks' microseconds per call, averaged over the ranks: PLAIN:INTERCEPTED:INTERCEPTED:PLAIN.
 * What the two plain blocks of a round differ by is the control.
 */
#ifndef MPI_PAIRED_H
#define MPI_PAIRED_H

#include <errno.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Whether CALL goes to what is preloaded, or past it. */
static int intercepted;

#define CALL(name, ...) (intercepted ? MPI_##name(__VA_ARGS__) : PMPI_##name(__VA_ARGS__))

/* The first of the columns that `paired` prints. */
#define PAIRED_HEADER "op,bytes,ranks,variant,rounds,verified"

/* Milliseconds of a block, and rounds of a case: as many as its time allows. */
static const double PAIRED_BLOCK = 1.5;
enum { PAIRED_FEWEST = 7, PAIRED_MOST = 41, PAIRED_CALLS = 200000 };

static double paired_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

/* Has all ranks use what rank 0 has. */
static int paired_agree(int value)
{
	PMPI_Bcast(&value, 1, MPI_INT, 0, MPI_COMM_WORLD);
	return value;
}

/* Times each call on its own, with a barrier before it: for what ranks do together. */
static inline double paired_each(void (*work)(void), int calls)
{
	double all = 0;

	for (int i = 0; i < calls; i++) {
		double start;

		PMPI_Barrier(MPI_COMM_WORLD);
		start = paired_now();
		work();
		all += paired_now() - start;
	}
	return all / calls;
}

/* The microseconds per call of a block, of this rank. */
static double paired_block(double (*timed)(int calls), int calls, int whose)
{
	double each;

	PMPI_Barrier(MPI_COMM_WORLD);
	intercepted = whose;
	each = timed(calls);
	intercepted = 0;
	return each;
}

/* How many calls make up a block of either: what lasts longer decides. */
static int paired_calls(double (*timed)(int calls), double *longest)
{
	int calls = 1;

	for (;;) {
		double plain = paired_block(timed, calls, 0);
		double ours = paired_block(timed, calls, 1);
		int enough, next;

		*longest = plain > ours ? plain : ours;
		/* The first call of a kind may take long for reasons of its own: twice at least. */
		enough = calls > 1 && *longest * calls >= PAIRED_BLOCK * 300;
		next = enough ? (int)(PAIRED_BLOCK * 1e3 / *longest) : calls * 2;
		next = next < 1 ? 1 : next > PAIRED_CALLS ? PAIRED_CALLS : next;
		next = paired_agree(enough || next == PAIRED_CALLS ? -next : next);
		if (next < 0)
			return -next;
		calls = next;
	}
}

/*
 * Measures a case. `timed` does `calls` calls by CALL and returns the microseconds that one took;
 * it may synchronise with PMPI functions. `budget` is the time of the case in milliseconds, `scale`
 * divides the times (2 for half of a round trip), `rest` is what follows VERIFIED, with its comma.
 */
static void paired(const char *op, size_t bytes, double (*timed)(int calls), double budget, double scale,
		   int verified, const char *rest)
{
	double mine[4 * PAIRED_MOST], average[4 * PAIRED_MOST], longest;
	int rank, size, calls, rounds, all;

	PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
	PMPI_Comm_size(MPI_COMM_WORLD, &size);
	calls = paired_calls(timed, &longest);
	rounds = (int)(budget * 1e3 / (4 * longest * calls));
	rounds = rounds < PAIRED_FEWEST ? PAIRED_FEWEST : rounds > PAIRED_MOST ? PAIRED_MOST : rounds;
	rounds = paired_agree(rounds);
	for (int round = 0; round < rounds; round++)
		for (int i = 0; i < 4; i++) {
			/* Odd rounds begin with what is intercepted; `at` is where the block is
			 * printed. */
			int ours = (i == 1 || i == 2) ^ (round & 1);
			int at = ours ? (i < 2 ? 1 : 2) : (i < 2 ? 0 : 3);

			mine[4 * round + at] = paired_block(timed, calls, ours) / scale;
		}
	PMPI_Reduce(mine, average, 4 * rounds, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
	PMPI_Allreduce(&verified, &all, 1, MPI_INT, MPI_LAND, MPI_COMM_WORLD);
	if (rank)
		return;
	printf("%s,%zu,%d,,", op, bytes, size);
	for (int i = 0; i < 4 * rounds; i++)
		printf("%s%.4f", i % 4 ? ":" : i ? ";" : "", average[i] / size);
	printf(",%s%s\n", all ? "yes" : "no", rest);
	fflush(stdout);
}

#endif
