// SPDX-License-Identifier: MIT OR Apache-2.0

/* What must not hang.
 *
 * usage: failures FILE kill          rank 1 is killed in the middle of large collectives
 *        failures FILE counts WHICH  rank 1 has another length than the others; MPI says so
 *        failures FILE again WHICH   the same, and then correct calls, which work; rank 2 is late
 *        failures FILE sides         the root of a nonblocking gather receives less than it sends
 *        failures FILE unable        rank 1 has no file descriptor left when the ranks make their
 *                                    team; its calls work
 *
 * What ranks have to say goes into FILE: launchers may drop what was printed just before an abort.
 */
#include <fcntl.h>
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { MOST = 1 << 22 };

static char *send, *recv;

static void say(const char *path, int rank, const char *what)
{
	char line[100];
	int length = snprintf(line, sizeof(line), "rank %d: %s\n", rank, what);
	int file = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
	if (file < 0 || write(file, line, length) != length)
		perror(path);
	close(file);
}

/* Large collectives, one after another; returns the first error code. */
static int call(int which, int bytes, int size)
{
	int counts[64], places[64], rank;
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	for (int i = 0; i < size; i++) {
		counts[i] = bytes;
		places[i] = i * bytes;
	}
	switch (which) {
	case 0:
		return MPI_Bcast(recv, bytes, MPI_BYTE, 0, MPI_COMM_WORLD);
	case 1:
		return MPI_Gatherv(send, bytes, MPI_BYTE, recv, counts, places, MPI_BYTE, 0,
				   MPI_COMM_WORLD);
	case 2:
		return MPI_Alltoall(send, bytes, MPI_BYTE, recv, bytes, MPI_BYTE, MPI_COMM_WORLD);
	case 3:
		return MPI_Alltoallv(send, counts, places, MPI_BYTE, recv, counts, places, MPI_BYTE,
				     MPI_COMM_WORLD);
	default:
		return MPI_Allreduce(send, recv, bytes, MPI_BYTE, MPI_BXOR, MPI_COMM_WORLD);
	}
}

int main(int argc, char **argv)
{
	int rank, size;
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	if (argc < 3 || size > 4)
		MPI_Abort(MPI_COMM_WORLD, 2);
	send = calloc(size, MOST);
	recv = calloc(size, MOST);
	MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
	if (strcmp(argv[2], "kill") == 0) {
		for (int round = 0;; round++) {
			if (rank == 1 && round == 13)
				kill(getpid(), SIGKILL);
			int code = call(round % 5, MOST, size);
			if (code != MPI_SUCCESS) {
				char text[MPI_MAX_ERROR_STRING];
				int length;
				MPI_Error_string(code, text, &length);
				text[70] = 0;
				say(argv[1], rank, text);
				say(argv[1], rank, "an error, not a hang");
				MPI_Abort(MPI_COMM_WORLD, 3);
			}
		}
	}
	if (strcmp(argv[2], "sides") == 0) {
		MPI_Request request;
		MPI_Igather(send, MOST, MPI_BYTE, recv, MOST, MPI_BYTE, 0, MPI_COMM_WORLD, &request);
		MPI_Wait(&request, MPI_STATUS_IGNORE);
		/* The ranks meet. */
		MPI_Barrier(MPI_COMM_WORLD);
		int code = MPI_Igather(send, MOST, MPI_BYTE, recv, MOST / 2, MPI_BYTE, 0,
				       MPI_COMM_WORLD, &request);
		/* The root cannot begin; the others must not wait for it for ever. */
		if (rank == 0)
			sleep(code == MPI_SUCCESS ? 0 : 300);
		else if (MPI_Wait(&request, MPI_STATUS_IGNORE) != MPI_SUCCESS)
			say(argv[1], rank, "an error, not a hang");
		MPI_Abort(MPI_COMM_WORLD, 3);
	}
	if (strcmp(argv[2], "again") == 0) {
		int which = atoi(argv[3]), class = MPI_SUCCESS;
		/* The team is there. */
		call(which, MOST, size);
		MPI_Barrier(MPI_COMM_WORLD);
		/* The others have failed their call, and wait for this rank elsewhere. */
		if (rank == 2)
			usleep(200 * 1000);
		int code = call(which, rank == 1 ? MOST / 2 : MOST, size);
		if (code != MPI_SUCCESS)
			MPI_Error_class(code, &class);
		if (class != MPI_SUCCESS && class != MPI_ERR_TRUNCATE)
			say(argv[1], rank, "another class");
		MPI_Barrier(MPI_COMM_WORLD);
		memset(send, 1 << rank, (size_t)size * MOST);
		memset(recv, 9, (size_t)size * MOST);
		for (int next = 0; next < 5; next++)
			if (call(next, MOST, size) != MPI_SUCCESS)
				say(argv[1], rank, "still an error");
		if (recv[MOST / 2] != (1 << size) - 1)
			say(argv[1], rank, "wrong");
		say(argv[1], rank, "works again");
		MPI_Finalize();
		return 0;
	}
	if (strcmp(argv[2], "unable") == 0) {
		struct rlimit usual, none;
		getrlimit(RLIMIT_NOFILE, &usual);
		none = usual;
		/* All descriptors below the first free one are open, and stay so. */
		int free_one = dup(0);
		close(free_one);
		none.rlim_cur = free_one;
		if (rank == 1 && (free_one < 0 || setrlimit(RLIMIT_NOFILE, &none)))
			MPI_Abort(MPI_COMM_WORLD, 2);
		for (int round = 0; round < 8; round++) {
			memset(recv, rank ? 0 : round + 1, MOST);
			if (call(0, MOST, size) != MPI_SUCCESS || recv[MOST - 1] != round + 1)
				say(argv[1], rank, "wrong");
		}
		setrlimit(RLIMIT_NOFILE, &usual);
		say(argv[1], rank, "works");
		MPI_Finalize();
		return 0;
	}
	int which = atoi(argv[3]), code = MPI_SUCCESS;
	/* A rank that has all it needs may hear of it with its next call. */
	for (int round = 0; round < 2 && code == MPI_SUCCESS; round++)
		code = call(which, rank == 1 ? MOST / 2 : MOST, size);
	say(argv[1], rank, code == MPI_SUCCESS ? "nothing" : "an error, not a hang");
	/* A rank that heard of nothing waits for one that did, which ends all. */
	if (code == MPI_SUCCESS)
		sleep(300);
	MPI_Abort(MPI_COMM_WORLD, code == MPI_SUCCESS ? 0 : 3);
	return 0;
}
