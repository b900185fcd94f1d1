// SPDX-License-Identifier: MIT OR Apache-2.0

/*
 * MPI_Pack and MPI_Unpack of the layouts of applications by one process: what `scripts/bench mpi`
 * measures with --ops pack,unpack.
 *
 * usage: mpi_packing FILE [MILLISECONDS [OP,...]]
 *
 * FILE has lines NAME<tab>EXPRESSION (`libcopy bench types --list`), each measured for MILLISECONDS
 * (100) with each OP, pack and unpack by default. Prints a line of mpi_paired.h for each.
 */
#define main types_main
#include "mpi_types.c"
#undef main
#include "mpi_paired.h"

static double timed_pack(int calls)
{
	double start = paired_now();

	for (int i = 0; i < calls; i++) {
		int position = 0;

		CALL(Pack, user.data + origin, 1, type, packed.data, (int)packed_length, &position,
		     MPI_COMM_WORLD);
	}
	return (paired_now() - start) / calls;
}

static double timed_unpack(int calls)
{
	double start = paired_now();

	for (int i = 0; i < calls; i++) {
		int position = 0;

		CALL(Unpack, packed.data, (int)packed_length, &position, user.data + origin, 1, type,
		     MPI_COMM_WORLD);
	}
	return (paired_now() - start) / calls;
}

/* What a call leaves behind in `to`, in a pattern that depends on whether it is intercepted in
 * nothing. */
static uint64_t outcome(double (*timed)(int calls), int whose, struct buffer *from, size_t length,
			struct buffer *to, size_t room)
{
	fill(from->data, length, 7);
	memset(to->data, 0x5a, room);
	intercepted = whose;
	timed(1);
	intercepted = 0;
	return hash(to->data, room);
}

static void measure(const char *name, const char *op, double budget)
{
	int unpacks = !strcmp(op, "unpack");
	double (*timed)(int calls) = unpacks ? timed_unpack : timed_pack;
	struct buffer *from = unpacks ? &packed : &user, *to = unpacks ? &user : &packed;
	size_t length, room;
	MPI_Count size, lb, extent, true_lb, true_extent;
	char rest[128];
	int same;

	MPI_Type_size_x(type, &size);
	MPI_Type_get_extent_x(type, &lb, &extent);
	MPI_Type_get_true_extent_x(type, &true_lb, &true_extent);
	if (size <= 0 || size > INT_MAX)
		return;
	origin = true_lb < 0 ? -true_lb : 0;
	user_length = (size_t)(origin + true_lb + true_extent);
	packed_length = (size_t)size;
	reserve(&user, user_length + 8, 0);
	reserve(&packed, packed_length + 8, 1);
	length = unpacks ? packed_length : user_length;
	room = unpacks ? user_length : packed_length;
	same = outcome(timed, 0, from, length, to, room) == outcome(timed, 1, from, length, to, room);
	snprintf(rest, sizeof(rest), ",%s", name);
	paired(op, packed_length, timed, budget, 1, same, rest);
}

int main(int argc, char **argv)
{
	double budget = argc > 2 ? atof(argv[2]) : 100;
	const char *ops = argc > 3 ? argv[3] : "pack,unpack";
	FILE *file, *nowhere = fopen("/dev/null", "w");
	char *line = NULL;
	size_t room = 0;

	if (argc < 2) {
		fprintf(stderr, "usage: mpirun -n 1 mpi_packing FILE [MILLISECONDS [OP,...]]\n");
		return 2;
	}
	MPI_Init(&argc, &argv);
	file = fopen(argv[1], "r");
	if (!file || !nowhere)
		die(argv[1]);
	while (getline(&line, &room, file) > 0) {
		char *tab = strchr(line, '\t'), *list = strdup(ops), *rest = NULL;
		const char *bad;

		if (!tab)
			continue;
		*tab = 0;
		tab[1 + strcspn(tab + 1, "\n")] = 0;
		bad = build(tab + 1, 0, nowhere);
		if (bad)
			fprintf(stderr, "mpi_packing: %s: %s\n", line, bad);
		for (char *op = strtok_r(list, ",", &rest); op && !bad; op = strtok_r(NULL, ",", &rest))
			measure(line, op, budget);
		free(list);
	}
	free(line);
	fclose(file);
	fclose(nowhere);
	MPI_Finalize();
	return 0;
}
