// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * What an MPI library takes to make and commit structs of 100,000 subarrays: the cases `struct:
 * ...` of `libcopy type bench --commit`, the same numbers in the same order. Lowest of nine rounds,
 * in processor time of the thread, which other work on the machine disturbs least.
 *
 * 	mpicc -O2 tests/peers/mpi_commit.c -o mpi_commit && mpirun -n 1 ./mpi_commit
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { MEMBERS = 100000, ROUNDS = 9 };
enum { BOXES, EQUAL_BOXES, ROWS, EQUAL_ROWS, WIDE_BOXES, CUBES, ONE_TYPE, ONE_TYPE_EVEN, KINDS };

static const char *const names[KINDS] = { "boxes", "equal boxes", "rows",     "equal rows",
					  "wide boxes", "cubes",  "one type", "one type, even" };

static unsigned long long state;

static int below(int end)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (int)((state >> 11) % (unsigned long long)end);
}

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
	return (double)time.tv_sec * 1e3 + (double)time.tv_nsec * 1e-6;
}

/* Makes a subarray of a kind; returns the bytes of its array. */
static MPI_Aint member(int kind, MPI_Datatype *type)
{
	int sizes[3] = { 10, kind == WIDE_BOXES ? 64 : 8, 4 };
	int box[3] = { 3, 2, 1 }, starts[3], dims = kind == CUBES ? 3 : 2;
	MPI_Aint bytes = 8;

	if (kind == BOXES || kind == ROWS || kind == WIDE_BOXES)
		box[0] = 1 + below(4);
	if (kind == BOXES)
		box[1] = 1 + below(4);
	if (kind == ROWS || kind == EQUAL_ROWS)
		box[1] = 8;
	if (kind == WIDE_BOXES)
		box[1] = 20 + below(30);
	if (kind == CUBES) {
		box[0] = 1 + below(3);
		box[1] = 1 + below(3);
		box[2] = 1 + below(2);
	}
	for (int d = 0; d < dims; d++) {
		starts[d] = below(sizes[d] - box[d] + 1);
		bytes *= sizes[d];
	}
	MPI_Type_create_subarray(dims, sizes, box, starts, MPI_ORDER_C, MPI_DOUBLE, type);
	return bytes;
}

int main(int argc, char **argv)
{
	int *lengths = malloc(MEMBERS * sizeof(*lengths));
	MPI_Aint *places = malloc(MEMBERS * sizeof(*places));
	MPI_Datatype *types = malloc(MEMBERS * sizeof(*types));

	if (!lengths || !places || !types)
		return 1;
	MPI_Init(&argc, &argv);
	printf("%-16s %10s %10s %10s\n", "struct of", "create ms", "commit ms", "both ms");
	for (int kind = 0; kind < KINDS; kind++) {
		double create = 1e9, commit = 1e9, both = 1e9;
		const int is_one = kind == ONE_TYPE || kind == ONE_TYPE_EVEN;

		for (int round = 0; round < ROUNDS; round++) {
			const int sizes[2] = { 10, 8 }, box[2] = { 3, 2 }, starts[2] = { 1, 2 };
			double begin, made, done;
			MPI_Datatype one, all;
			MPI_Aint at = 0;

			state = 0x9e3779b97f4a7c15ULL;
			begin = now();
			MPI_Type_create_subarray(2, sizes, box, starts, MPI_ORDER_C, MPI_DOUBLE,
						 &one);
			for (int i = 0; i < MEMBERS; i++) {
				lengths[i] = 1;
				places[i] = at;
				types[i] = one;
				if (is_one)
					at += 8 * (80 + below(kind == ONE_TYPE ? 8 : 1));
				else
					at += member(kind, &types[i]);
			}
			MPI_Type_create_struct(MEMBERS, lengths, places, types, &all);
			made = now();
			MPI_Type_commit(&all);
			done = now();
			create = made - begin < create ? made - begin : create;
			commit = done - made < commit ? done - made : commit;
			both = done - begin < both ? done - begin : both;
			MPI_Type_free(&all);
			for (int i = 0; !is_one && i < MEMBERS; i++)
				MPI_Type_free(&types[i]);
			MPI_Type_free(&one);
		}
		printf("%-16s %10.2f %10.2f %10.2f\n", names[kind], create, commit, both);
	}
	MPI_Finalize();
	free(lengths);
	free(places);
	free(types);
	return 0;
}
