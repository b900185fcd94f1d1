// SPDX-License-Identifier: MIT OR Apache-2.0

/* Cases of a test program, which runs those that its arguments name, in their order, by all ranks
 * together. */
#include "device.h"

struct test_case {
	const char *name;
	void (*run)(void);
};

static void run_cases(const struct test_case *cases, size_t count, int names, char **name)
{
	int rank;
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	for (int i = 1; i < names; i++) {
		size_t which = 0;
		while (which < count && strcmp(cases[which].name, name[i]))
			which++;
		CHECK(which < count, "no case %s", name[i]);
		cases[which].run();
		printf("rank %d: %s\n", rank, name[i]);
		fflush(stdout);
		MPI_Barrier(MPI_COMM_WORLD);
	}
}
