// SPDX-License-Identifier: MIT OR Apache-2.0

/* Broadcasts on communicators that wait for a team, of sizes that come again and of others, between
 * other collectives, by ranks that have different numbers of such communicators: only if all count
 * the same calls do they ask for a team, and take it, at the same one. Prints how many numbers were
 * wrong.
 *
 * usage: waits CALLS
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { MOST = 10000, LONG = 1 << 17 };

static int rank, size, wrong;

static void bcast(MPI_Comm comm, int count, int salt)
{
	static int numbers[LONG];
	int me, ranks;
	MPI_Comm_rank(comm, &me);
	MPI_Comm_size(comm, &ranks);
	for (int i = 0; i < count; i++)
		numbers[i] = me == salt % ranks ? salt + i : -1;
	/* The same elements as a type of one rank's own. */
	if (rank % 2 && salt % 3 == 0) {
		MPI_Datatype all;
		MPI_Type_contiguous(count, MPI_INT, &all);
		MPI_Type_commit(&all);
		MPI_Bcast(numbers, 1, all, salt % ranks, comm);
		MPI_Type_free(&all);
	} else {
		MPI_Bcast(numbers, count, MPI_INT, salt % ranks, comm);
	}
	for (int i = 0; i < count; i++)
		wrong += numbers[i] != salt + i;
}

int main(int argc, char **argv)
{
	static int numbers[LONG];
	static const int counts[] = {50, 50, 5000, 60, 50, 5000, 5001, 7, 50, MOST};
	int calls = argc > 1 ? atoi(argv[1]) : 100;
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	/* The first two ranks have other communicators that wait; some of them go later. */
	MPI_Comm pairs[6], both[2];
	for (int i = 0; i < 6; i++) {
		MPI_Comm_split(MPI_COMM_WORLD, rank < 2 ? 0 : MPI_UNDEFINED, rank, &pairs[i]);
		for (int call = 0; call < 40 && rank < 2; call++)
			bcast(pairs[i], 50, call);
	}
	for (int i = 0; i < 2; i++)
		MPI_Comm_dup(MPI_COMM_WORLD, &both[i]);
	for (int call = 0; call < calls; call++) {
		MPI_Comm comm = both[call / 3 % 2];
		bcast(comm, counts[call % 10], call);
		if (call % 7 == 3) {
			int one = 1, all = 0;
			MPI_Allreduce(&one, &all, 1, MPI_INT, MPI_SUM, comm);
			wrong += all != size;
		}
		/* After a nonblocking one ranks meet in the next one that blocks. */
		if (call == calls / 4) {
			MPI_Request request;
			MPI_Ibcast(numbers, LONG, MPI_INT, 0, both[0], &request);
			MPI_Wait(&request, MPI_STATUS_IGNORE);
		}
		/* Sums whose order must stay the same want a team at once, or never. */
		if (call == calls / 3) {
			double one = 1, all = 0;
			MPI_Allreduce(&one, &all, 1, MPI_DOUBLE, MPI_SUM, both[1]);
			wrong += all != size;
		}
		/* Handles of those that go are those of others. */
		if (call % (calls / 8 + 1) == 5) {
			MPI_Comm_free(&both[0]);
			if (rank < 2 && pairs[0] != MPI_COMM_NULL)
				MPI_Comm_free(&pairs[0]);
			MPI_Comm_dup(MPI_COMM_WORLD, &both[0]);
		}
	}
	printf("%d wrong\n", wrong);
	for (int i = 0; i < 6; i++)
		if (pairs[i] != MPI_COMM_NULL)
			MPI_Comm_free(&pairs[i]);
	for (int i = 0; i < 2; i++)
		MPI_Comm_free(&both[i]);
	MPI_Finalize();
	return 0;
}
