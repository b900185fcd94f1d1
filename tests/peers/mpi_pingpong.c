// SPDX-License-Identifier: MIT OR Apache-2.0

/*
 * Ping-pong of the layouts of applications between two ranks: what `scripts/bench mpi` measures
 * with --ops typed-pingpong.
 *
 * usage: mpi_pingpong FILE [MILLISECONDS]
 *
 * FILE has lines NAME<tab>EXPRESSION (`libcopy bench types --list`), each measured for MILLISECONDS
 * (100). Rank 0 prints a line of mpi_paired.h for each: microseconds of half a round trip.
 */
#define main types_main
#include "mpi_types.c"
#undef main
#include "mpi_paired.h"

static int rank;

static void once(unsigned char *from, unsigned char *to)
{
	if (rank == 0) {
		CALL(Send, from + origin, 1, type, 1, 1, MPI_COMM_WORLD);
		CALL(Recv, to + origin, 1, type, 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	} else {
		CALL(Recv, to + origin, 1, type, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		CALL(Send, from + origin, 1, type, 0, 1, MPI_COMM_WORLD);
	}
}

static double timed(int calls)
{
	uint64_t start = now();

	for (int i = 0; i < calls; i++)
		once(user.data, target.data);
	return (double)(now() - start) / calls / 1000;
}

/* The bytes that rank 0 has sent, and that rank 1 has sent back from where it received them. */
static int verified(unsigned char *from, unsigned char *to, size_t span, MPI_Count size)
{
	int same = 1, position = 0;

	fill(from, span, 1);
	memset(to, 0, span);
	intercepted = 1;
	if (rank == 0)
		once(from, to);
	else
		once(to, to);
	intercepted = 0;
	if (rank == 0 && size <= INT_MAX) {
		unsigned char *a = malloc(size), *b = malloc(size);

		MPI_Pack(from + origin, 1, type, a, (int)size, &position, MPI_COMM_WORLD);
		position = 0;
		MPI_Pack(to + origin, 1, type, b, (int)size, &position, MPI_COMM_WORLD);
		same = !memcmp(a, b, size);
		free(a);
		free(b);
	}
	return same;
}

static void measure(const char *name, double budget)
{
	MPI_Count size, lb, extent, true_lb, true_extent;
	char rest[128];
	size_t span;
	int same;

	MPI_Type_size_x(type, &size);
	MPI_Type_get_extent_x(type, &lb, &extent);
	MPI_Type_get_true_extent_x(type, &true_lb, &true_extent);
	origin = true_lb < 0 ? -true_lb : 0;
	span = (size_t)(origin + true_lb + true_extent);
	reserve(&user, span + 8, rank);
	reserve(&target, span + 8, 2 + rank);
	same = verified(user.data, target.data, span, size);
	snprintf(rest, sizeof(rest), ",%s", name);
	paired("typed-pingpong", (size_t)size, timed, budget, 2, same, rest);
}

int main(int argc, char **argv)
{
	char *line = NULL;
	size_t room = 0;
	int size;
	FILE *file, *nowhere;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	if (argc < 2 || size != 2) {
		fprintf(stderr, "usage: mpirun -n 2 mpi_pingpong FILE [MILLISECONDS]\n");
		MPI_Abort(MPI_COMM_WORLD, 2);
	}
	file = fopen(argv[1], "r");
	nowhere = fopen("/dev/null", "w");
	if (!file || !nowhere)
		die(argv[1]);
	while (getline(&line, &room, file) > 0) {
		char *tab = strchr(line, '\t');
		const char *bad;

		if (!tab)
			continue;
		*tab = 0;
		tab[1 + strcspn(tab + 1, "\n")] = 0;
		bad = build(tab + 1, 0, nowhere);
		if (bad && rank == 0)
			fprintf(stderr, "mpi_pingpong: %s: %s\n", line, bad);
		if (!bad)
			measure(line, argc > 2 ? atof(argv[2]) : 100);
	}
	free(line);
	fclose(file);
	fclose(nowhere);
	MPI_Finalize();
	return 0;
}
