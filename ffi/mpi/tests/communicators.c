// SPDX-License-Identifier: MIT OR Apache-2.0

// Programs that make many communicators: what each of them costs beside what MPI takes for it.

#include <dirent.h>
#include <mpi.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { MOST = 400, LENGTH = 1 << 20 };

static int rank, size;
// Communicators, or rounds.
static int number;

static void fail(const char *what, long value)
{
	fprintf(stderr, "rank %d: %s %ld\n", rank, what, value);
	MPI_Abort(MPI_COMM_WORLD, 1);
}

static int descriptors(void)
{
	DIR *directory = opendir("/proc/self/fd");
	int found = 0;
	if (!directory)
		fail("no /proc/self/fd, open before:", -1);
	while (readdir(directory))
		found++;
	closedir(directory);
	return found;
}

// Resident memory in KiB, shared memory included.
static long resident(void)
{
	FILE *file = fopen("/proc/self/smaps_rollup", "r");
	char line[256];
	long kib = -1;
	if (!file)
		fail("smaps_rollup", -1);
	while (fgets(line, sizeof(line), file))
		sscanf(line, "Rss: %ld", &kib);
	fclose(file);
	return kib;
}

// A broadcast whose bytes say who sent them, and when.
static void check(MPI_Comm comm, int root, int round, unsigned char *bytes)
{
	int me;
	MPI_Comm_rank(comm, &me);
	memset(bytes, me == root ? round * 7 + root + 1 : 255, LENGTH);
	MPI_Bcast(bytes, LENGTH, MPI_BYTE, root, comm);
	for (size_t at = 0; at < LENGTH; at += 997)
		if (bytes[at] != (unsigned char)(round * 7 + root + 1))
			fail("wrong bytes in round", round);
}

// Gathers show whether ranks of a team are those of the communicator.
static void check_order(MPI_Comm comm, int round)
{
	enum { PART = 30000 };
	static int mine[PART], all[4 * PART];
	int me, ranks;
	MPI_Comm_rank(comm, &me);
	MPI_Comm_size(comm, &ranks);
	for (int i = 0; i < PART; i++)
		mine[i] = round * 1000 + me;
	MPI_Allgather(mine, PART, MPI_INT, all, PART, MPI_INT, comm);
	for (int i = 0; i < ranks * PART; i++)
		if (all[i] != round * 1000 + i / PART)
			fail("wrong order in round", round);
}

// Communicators of the same processes and of others, in other orders, all in use at the same time.
static void many(int most_descriptors, int most_kib)
{
	static MPI_Comm comms[MOST];
	if (number > MOST)
		fail("too many communicators:", number);
	unsigned char *bytes = malloc(LENGTH);
	// What MPI itself takes for its first collectives of this kind.
	for (int i = 0; i < size; i++)
		check(MPI_COMM_SELF, 0, i, bytes);
	// As with `ulimit -n`: MPI has its descriptors, and the program needs few.
	struct rlimit files = {256, 256};
	if (setrlimit(RLIMIT_NOFILE, &files))
		fail("setrlimit", 256);
	MPI_Barrier(MPI_COMM_WORLD);
	int open_before = descriptors();
	long before = resident();
	for (int i = 0; i < number; i++) {
		int kind = i % 4;
		if (kind < 2)
			MPI_Comm_dup(MPI_COMM_WORLD, &comms[i]);
		else
			MPI_Comm_split(MPI_COMM_WORLD, kind == 2 ? 0 : rank % 2, i % 8 < 4 ? rank : -rank,
				       &comms[i]);
		int ranks;
		MPI_Comm_size(comms[i], &ranks);
		check(comms[i], i / 4 % ranks, i, bytes);
	}
	FILE *file = fopen("/dev/null", "r");
	if (!file)
		fail("the program cannot open a file with communicators:", number);
	fclose(file);
	int more = descriptors() - open_before;
	long grown = resident() - before;
	for (int i = 0; i < number; i++) {
		if (i % 10 < 4)
			check_order(comms[i], i);
		MPI_Comm_free(&comms[i]);
	}
	if (more > most_descriptors)
		fail("more descriptors:", more);
	if (grown > most_kib)
		fail("more KiB resident:", grown);
	free(bytes);
}

// Communicators of the same processes have one team for each order, once they have moved enough for
// it: at most 16 times 9 MiB, if making the first one took long.
static void make_teams(unsigned char *bytes)
{
	for (int order = 0; order < 2; order++) {
		MPI_Comm comm;
		MPI_Comm_split(MPI_COMM_WORLD, 0, order ? -rank : rank, &comm);
		for (int i = 0; i < 150; i++)
			check(comm, i % size, i, bytes);
		MPI_Comm_free(&comm);
	}
}

// Communicators that come and go.
static void loop(int most_kib)
{
	unsigned char *bytes = malloc(LENGTH);
	make_teams(bytes);
	int first = 0;
	long before = 0;
	for (int i = 0; i < number; i++) {
		// What the MPI library keeps for communicators is there by now.
		if (i == number / 4) {
			first = descriptors();
			before = resident();
		}
		MPI_Comm comm;
		if (i % 3)
			MPI_Comm_dup(MPI_COMM_WORLD, &comm);
		else
			MPI_Comm_split(MPI_COMM_WORLD, 0, i % 2 ? -rank : rank, &comm);
		check(comm, i % size, i, bytes);
		MPI_Comm_free(&comm);
	}
	int more = descriptors() - first;
	long grown = resident() - before;
	if (more > 1)
		fail("a loop takes descriptors:", more);
	if (grown > most_kib)
		fail("a loop takes KiB:", grown);
	free(bytes);
}

static MPI_Comm of_thread[3];

static void *in_thread(void *argument)
{
	int mine = *(int *)argument;
	unsigned char *bytes = malloc(LENGTH);
	for (int i = 0; i < number / 3; i++) {
		MPI_Comm comm;
		MPI_Comm_dup(of_thread[mine], &comm);
		for (int k = 0; k <= i % 5; k++)
			check(comm, (mine + i) % size, i + k, bytes);
		MPI_Comm_free(&comm);
	}
	free(bytes);
	return NULL;
}

// Threads whose communicators have the same processes come in any order.
static void threads(int provided)
{
	pthread_t other[3];
	int numbers[3];
	if (provided < MPI_THREAD_MULTIPLE) {
		printf("no threads\n");
		return;
	}
	for (int i = 0; i < 3; i++)
		MPI_Comm_dup(MPI_COMM_WORLD, &of_thread[i]);
	for (int i = 0; i < 3; i++) {
		numbers[i] = i;
		pthread_create(&other[i], NULL, in_thread, &numbers[i]);
	}
	for (int i = 0; i < 3; i++)
		pthread_join(other[i], NULL);
	for (int i = 0; i < 3; i++)
		MPI_Comm_free(&of_thread[i]);
}

// Few broadcasts that take long, as where ranks wait for a processor.
static void late(void)
{
	unsigned char *bytes = malloc(LENGTH);
	for (int i = 0; i < number; i++) {
		if (rank == 1)
			usleep(20000);
		check(MPI_COMM_WORLD, 1, i, bytes);
	}
	free(bytes);
}

int main(int argc, char **argv)
{
	int provided, multiple = argc > 1 && !strcmp(argv[1], "threads");
	MPI_Init_thread(&argc, &argv, multiple ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE, &provided);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	if (argc < 3)
		fail("many, loop, late or threads, and a number, but arguments:", argc);
	number = atoi(argv[2]);
	if (!strcmp(argv[1], "many"))
		many(argc > 3 ? atoi(argv[3]) : 0, argc > 4 ? atoi(argv[4]) : 0);
	else if (!strcmp(argv[1], "loop"))
		loop(argc > 3 ? atoi(argv[3]) : 0);
	else if (!strcmp(argv[1], "late"))
		late();
	else
		threads(provided);
	if (rank == 0)
		printf("all right\n");
	MPI_Finalize();
	return 0;
}
