// SPDX-License-Identifier: MIT OR Apache-2.0

/* Messages whose receivers or senders are busy elsewhere, errors, and what is left at the end.
 * Prints one line for each case, the same with libcopy_mpi.so and without it. Two ranks.
 *
 * usage: waiting [kill|most]      kill: rank 1 is killed in the middle of large messages
 *                                most: all cases but the last
 */
#include <mpi.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "checksum.h"

enum { ROWS = 20000, ROW = 24, STRIDE = 40, LARGE = 3 << 20, MANY = 150, PART = 6000 };

static int rank, peer;
static unsigned char *a, *b;
static MPI_Datatype rows;

static void reset(void)
{
	for (size_t i = 0; i < LARGE; i++) {
		a[i] = i * 7 + i / 251 + rank;
		b[i] = i * 3 + rank;
	}
}

static void show(const char *what, int code, int count)
{
	int class = MPI_SUCCESS;
	if (code != MPI_SUCCESS)
		MPI_Error_class(code, &class);
	const char *name = class == MPI_SUCCESS	     ? "fine" :
			   class == MPI_ERR_TRUNCATE ? "truncated" :
			   class == MPI_ERR_IN_STATUS ? "in status" :
							"another error";
	uint64_t mine[2] = { hash(b, LARGE), count }, all[4];
	char names[2][16] = { "", "" }, own[16];
	snprintf(own, sizeof(own), "%s", name);
	MPI_Gather(mine, 2, MPI_UINT64_T, all, 2, MPI_UINT64_T, 0, MPI_COMM_WORLD);
	MPI_Gather(own, 16, MPI_CHAR, names, 16, MPI_CHAR, 0, MPI_COMM_WORLD);
	if (rank == 0)
		printf("%s: %016llx %llu %s, %016llx %llu %s\n", what, (unsigned long long)all[0],
		       (unsigned long long)all[1], names[0], (unsigned long long)all[2],
		       (unsigned long long)all[3], names[1]);
	reset();
	MPI_Barrier(MPI_COMM_WORLD);
}

static int received(MPI_Status *status)
{
	int count;
	MPI_Get_count(status, MPI_BYTE, &count);
	return count;
}

static void die(void)
{
	MPI_Status statuses[2];
	for (int round = 0;; round++) {
		if (rank == 1 && round == 9)
			kill(getpid(), SIGKILL);
		MPI_Request requests[2];
		MPI_Irecv(b, 1, rows, peer, 1, MPI_COMM_WORLD, &requests[0]);
		MPI_Isend(a, 1, rows, peer, 1, MPI_COMM_WORLD, &requests[1]);
		int code = MPI_Waitall(2, requests, statuses);
		if (code != MPI_SUCCESS)
			MPI_Abort(MPI_COMM_WORLD, 3);
	}
}

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	peer = 1 - rank;
	a = malloc(LARGE);
	b = malloc(LARGE);
	reset();
	MPI_Type_vector(ROWS, ROW, STRIDE, MPI_BYTE, &rows);
	MPI_Type_commit(&rows);
	MPI_Request request, requests[MANY + 2];
	MPI_Status status, statuses[MANY + 2];
	int code = 0, flag, count = 0;
	memset(&status, 0, sizeof(status));
	if (argc > 1 && strcmp(argv[1], "kill") == 0)
		die();

	/* The receiver has posted its receive, and waits elsewhere. */
	if (rank == 1)
		MPI_Irecv(b, LARGE, MPI_BYTE, 0, 1, MPI_COMM_WORLD, &request);
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank == 0)
		MPI_Send(a, LARGE, MPI_BYTE, 1, 1, MPI_COMM_WORLD);
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank == 1)
		MPI_Wait(&request, &status);
	show("a receiver elsewhere", 0, rank ? received(&status) : 0);

	/* The same with a type, and a synchronous send. */
	if (rank == 1)
		MPI_Irecv(b, 1, rows, 0, 1, MPI_COMM_WORLD, &request);
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank == 0)
		MPI_Ssend(a, 1, rows, 1, 1, MPI_COMM_WORLD);
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank == 1)
		MPI_Wait(&request, &status);
	show("a receiver of rows elsewhere", 0, rank ? received(&status) : 0);

	/* The sender waits elsewhere. */
	if (rank == 0) {
		MPI_Isend(a, 1, rows, 1, 1, MPI_COMM_WORLD, &request);
	} else {
		usleep(20000);
		MPI_Recv(b, LARGE, MPI_BYTE, 0, 1, MPI_COMM_WORLD, &status);
	}
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank == 0)
		MPI_Wait(&request, &status);
	show("a sender elsewhere", 0, rank ? received(&status) : 0);

	/* Both send with a receive posted, then both with MPI_Sendrecv. */
	MPI_Irecv(b, 1, rows, peer, 1, MPI_COMM_WORLD, &request);
	MPI_Send(a, 1, rows, peer, 1, MPI_COMM_WORLD);
	MPI_Wait(&request, &status);
	show("head to head", 0, received(&status));
	MPI_Sendrecv(a, LARGE, MPI_BYTE, peer, 1, b, LARGE, MPI_BYTE, peer, 1, MPI_COMM_WORLD,
		     &status);
	show("sendrecv", 0, received(&status));
	MPI_Sendrecv_replace(b, 1, rows, peer, 1, peer, 1, MPI_COMM_WORLD, &status);
	show("sendrecv in place", 0, received(&status));

	/* More at a time than there are slots, taken last first. */
	for (int i = 0; rank == 0 && i < MANY; i++)
		MPI_Isend(a + i * PART, PART, MPI_BYTE, 1, i, MPI_COMM_WORLD, &requests[i]);
	for (int i = MANY - 1; rank == 1 && i >= 0; i--)
		MPI_Recv(b + i * PART, PART, MPI_BYTE, 0, i, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	if (rank == 0)
		MPI_Waitall(MANY, requests, statuses);
	show("many", 0, 0);

	/* Short messages of every length between long ones; a probe says how long each is. */
	for (int i = 0; rank == 0 && i < MANY; i++)
		MPI_Isend(a + i * PART, i % 3 ? 32 * i : PART, MPI_BYTE, 1, 1, MPI_COMM_WORLD,
			  &requests[i]);
	for (int i = 0; rank == 1 && i < MANY; i++) {
		MPI_Probe(0, 1, MPI_COMM_WORLD, &status);
		if (received(&status) != (i % 3 ? 32 * i : PART))
			count++;
		MPI_Recv(b + i * PART, received(&status), MPI_BYTE, 0, 1, MPI_COMM_WORLD,
			 MPI_STATUS_IGNORE);
	}
	if (rank == 0)
		MPI_Waitall(MANY, requests, statuses);
	show("probes", 0, count);

	/* Errors come to the receiver as from the library. */
	MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
	if (rank == 0)
		MPI_Send(a, 1, rows, 1, 1, MPI_COMM_WORLD);
	else
		code = MPI_Recv(b, PART, MPI_BYTE, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	/* What is in the buffer then is anybody's guess. */
	memset(b, 0, LARGE);
	show("truncated", code, 0);
	code = 0;
	if (rank == 0) {
		MPI_Send(a, PART, MPI_BYTE, 1, 1, MPI_COMM_WORLD);
		MPI_Send(a, 1, rows, 1, 1, MPI_COMM_WORLD);
	} else {
		MPI_Irecv(b, PART, MPI_BYTE, 0, 1, MPI_COMM_WORLD, &requests[0]);
		MPI_Irecv(b + PART, PART, MPI_BYTE, 0, 1, MPI_COMM_WORLD, &requests[1]);
		code = MPI_Waitall(2, requests, statuses);
		int class = 0;
		MPI_Error_class(statuses[1].MPI_ERROR, &class);
		count = class == MPI_ERR_TRUNCATE && statuses[0].MPI_ERROR == MPI_SUCCESS;
	}
	memset(b + PART, 0, LARGE - PART);
	show("one of two truncated", code, count);
	MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL);

	/* A receive that nothing came for. */
	MPI_Irecv(b, 1, rows, peer, 77, MPI_COMM_WORLD, &request);
	MPI_Cancel(&request);
	MPI_Wait(&request, &status);
	MPI_Test_cancelled(&status, &flag);
	show("cancelled", 0, flag);

	/* A child that knows nothing of MPI, while messages are under way. */
	MPI_Irecv(b, 1, rows, peer, 1, MPI_COMM_WORLD, &requests[0]);
	MPI_Isend(a, 1, rows, peer, 1, MPI_COMM_WORLD, &requests[1]);
	pid_t child = fork();
	if (child == 0)
		_exit(0);
	waitpid(child, NULL, 0);
	MPI_Waitall(2, requests, statuses);
	show("fork", 0, received(&statuses[0]));

	/* Nobody asks for the send again, and its sender is done with MPI. MPICH itself hangs
	 * then. */
	if (argc > 1) {
	} else if (rank == 0) {
		MPI_Isend(a, 1, rows, 1, 1, MPI_COMM_WORLD, &request);
		MPI_Request_free(&request);
	} else {
		usleep(100000);
		MPI_Recv(b, 1, rows, 0, 1, MPI_COMM_WORLD, &status);
		printf("at the end: %016llx %d\n", (unsigned long long)hash(b, LARGE),
		       received(&status));
		fflush(stdout);
	}
	MPI_Finalize();
	return 0;
}
